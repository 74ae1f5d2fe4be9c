"""Reading calls out of answers: however an answer is cut, the same is told, and nothing that was said is lost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from akashic_daemon.toolcalls.calls import Call
from akashic_daemon.toolcalls.history import calls_as_text
from akashic_daemon.toolcalls.reader import CallDelta, CallReader
from akashic_daemon.toolcalls.syntax import (
    COMMAND,
    DEEPSEEK,
    DEEPSEEK_PLAIN,
    GENERIC,
    GRANITE,
    HERMES,
    LLAMA,
    MISTRAL,
    MISTRAL_NAMED,
    NEMOTRON,
    PHI,
    TAGS,
    Shape,
    Syntax,
)
from akashic_daemon.trajectory.message import ToolCall

SYNTAXES = {
    s.name: s
    for s in (
        DEEPSEEK_PLAIN,
        NEMOTRON,
        HERMES,
        GENERIC,
        LLAMA,
        MISTRAL,
        MISTRAL_NAMED,
        TAGS,
        DEEPSEEK,
        PHI,
        GRANITE,
        COMMAND,
    )
}
Told = tuple[str, tuple[tuple[str, str], ...], str | None, tuple[Call, ...], str]


def told(syntax: Syntax, pieces: Sequence[str], *, stop: Sequence[str] = (), streams: bool = False) -> Told:
    """Return what a reader tells of these pieces: text, calls by their deltas, the stop string, calls, text at the end."""
    reader = CallReader(syntax, stop=stop, streams=streams)
    said = [part for piece in pieces for part in reader.push(piece)] + reader.finish()
    text, names, arguments = "", list[str](), list[str]()
    for part in said:
        if isinstance(part, str):
            text += part
        elif part.name is not None:
            assert part.index == len(names)
            names.append(part.name)
            arguments.append(part.arguments)
        else:
            assert part.index == len(names) - 1
            arguments[-1] += part.arguments
    calls = tuple(zip(names, arguments, strict=True))
    return text, calls, reader.stop_string, tuple(reader.calls), reader.text


def marks(syntax: Syntax) -> list[str]:
    return [m for m in (*syntax.marks, syntax.joint, syntax.start, syntax.end) if m]


def answers(syntax: Syntax) -> st.SearchStrategy[str]:
    """Answers of scraps of the wrapper, calls and text in any order."""
    objects = st.dictionaries(st.sampled_from("ab"), st.text('x{}"\\<>\n', max_size=4) | st.integers(0, 9), max_size=2)
    calls = st.builds(
        lambda name, arguments: calls_as_text([ToolCall("", name, json.dumps(arguments))], syntax),
        st.sampled_from(["f", "get"]),
        objects,
    )
    scraps = st.sampled_from(
        [*marks(syntax), '{"name": "f"', "{", "}", "]", ", ", '"', "text", " ", "\n", ";", "<", "f"]
    )
    cut = st.builds(lambda text, at: text[: at % (len(text) + 1)], calls, st.integers(0, 200))
    return st.lists(calls | scraps | cut, max_size=6).map("".join)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("syntax", SYNTAXES.values(), ids=SYNTAXES)
@given(data=st.data())
@settings(max_examples=120, deadline=None)
def test_an_answer_tells_the_same_however_it_is_cut(syntax: Syntax, streams: bool, data: st.DataObject) -> None:
    answer = data.draw(answers(syntax))
    stop = data.draw(st.lists(st.sampled_from(["<", "tool", "f", "}\n", "text", "\n\n"]), max_size=2))
    edges = sorted({0, len(answer), *data.draw(st.lists(st.integers(0, len(answer)), max_size=6))})
    whole = told(syntax, [answer], stop=stop, streams=streams)
    assert told(syntax, list(answer), stop=stop, streams=streams) == whole
    assert told(syntax, [answer[a:b] for a, b in pairwise(edges)], stop=stop, streams=streams) == whole
    text, deltas, _, calls, at_end = whole
    assert text == at_end
    assert deltas == tuple((call.name, call.arguments) for call in calls)


@pytest.mark.parametrize("syntax", SYNTAXES.values(), ids=SYNTAXES)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_calls_as_the_model_writes_them_are_read_byte_for_byte(syntax: Syntax, data: st.DataObject) -> None:
    values = st.recursive(
        st.text(max_size=6) | st.integers() | st.booleans() | st.none(),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
        max_leaves=4,
    )
    if syntax.shape is Shape.TAGS:  # values of other kinds are told apart by the tools' schemas
        values = st.text("ab \n<&", max_size=6).map(lambda text: f"x{text}x")
    made = st.builds(
        lambda name, arguments: ToolCall("", name, json.dumps(arguments, ensure_ascii=False)),
        st.sampled_from(["get_weather", "f"]),
        st.dictionaries(st.text("abc", min_size=1, max_size=3), values, max_size=3),
    )
    calls = data.draw(st.lists(made, min_size=1, max_size=3))
    before = "" if syntax.bare else data.draw(st.sampled_from(["", "Let me look."]))
    answer = before + ("\n" if before else "") + syntax.outer[0] + calls_as_text(calls, syntax) + syntax.outer[1]
    for streams in (False, True):
        text, deltas, _, _, _ = told(syntax, [answer], streams=streams)
        assert text == before
        assert deltas == tuple((call.name, call.arguments) for call in calls)


@given(st.text("ab<>{}\n tol_c", max_size=20), st.sampled_from([HERMES, MISTRAL, DEEPSEEK]))
@settings(max_examples=200, deadline=None)
def test_text_without_a_wrapper_is_told_as_it_is(answer: str, syntax: Syntax) -> None:
    assert told(syntax, list(answer))[0] == answer


@pytest.mark.parametrize(
    "broken",
    [
        "<tool_call>\nI would call it\n</tool_call>",
        '<tool_call>\n{"name": "f", "arguments": {"a": }}\n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": {"a": 1}',
        '<tool_call>\n{"arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": [1]}\n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": {"a": NaN}}\n</tool_call>',
        "<tool_call>",
    ],
)
def test_what_is_no_call_stays_text(broken: str) -> None:
    assert told(HERMES, list(broken))[:2] == (broken, ())
    good = '\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    if broken.endswith("</tool_call>"):
        assert told(HERMES, [broken + good])[:2] == (broken, (("f", "{}"),))


def test_a_stop_string_ends_text_and_never_a_call() -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {"a": "STOP"}}\n</tool_call>'
    text, calls, stop, _, _ = told(HERMES, list(f"one {call} two STOP three"), stop=["STOP"], streams=True)
    assert (text, calls, stop) == ("one two ", (("f", '{"a": "STOP"}'),), "STOP")


def test_an_answer_that_is_cut_within_arguments_tells_them_as_far_as_they_came() -> None:
    reader = CallReader(HERMES, streams=True)
    said = reader.push('<tool_call>\n{"name": "f", "arguments": {"a": "xy')
    assert said == [CallDelta(0, "", "f"), CallDelta(0, '{"a": "xy')]
    assert reader.finish() == []
    assert reader.calls == [Call("f", '{"a": "xy')]


def test_after_the_only_call_that_is_allowed_the_answer_is_over() -> None:
    reader = CallReader(HERMES, most_calls=1)
    reader.push('<tool_call>\n{"name": "f", "arguments": {}}\n</tool_cal')
    assert not reader.is_over
    reader.push("l>")
    assert reader.is_over


def test_arguments_in_a_json_string_are_taken_out_of_it() -> None:
    answer = '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>'
    assert told(HERMES, [answer])[1] == (("f", '{"a": 1}'),)


@pytest.mark.parametrize("name", [r'"\q"', '"a\nb"', r'"\u12"'])
@pytest.mark.parametrize("whole", [True, False])
def test_a_name_that_is_no_json_stays_text_also_where_calls_are_streamed(name: str, whole: bool) -> None:
    said = f'<tool_call>{{"name": {name}, "arguments": {{"a": 1}}}}</tool_call>'
    text, calls, *_ = told(HERMES, [said] if whole else list(said), streams=True)
    assert (text, calls) == (said, ())
