"""Thoughts between other marks than `<think>`: Mistral's brackets and gpt-oss's channels, however an answer is cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tool_templates
from akashic_daemon.schedule.answer import Answer
from akashic_daemon.schedule.events import TextDelta, ThinkingDelta
from akashic_daemon.toolcalls.form import Thinking, answer_form
from akashic_daemon.toolcalls.matcher import grammar_of
from akashic_daemon.toolcalls.syntax import GENERIC
from akashic_daemon.toolcalls.thought_marks import BRACKETS, CHANNELS, THINK, ThoughtMarks, thought_marks_of
from akashic_daemon.toolcalls.thoughts import parted, reader_of
from akashic_daemon.trajectory.message import Message, Role
from akashic_daemon.trajectory.template import ChatTemplate

ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
NEXT = "<|end|><|start|>assistant"
HARMONY = f"{ANALYSIS}User asks 2+2. Simple.{NEXT}{FINAL}2 + 2 = 4.<|return|>"
MAGISTRAL = "[THINK]Okay, 2+2.\nThat is 4.[/THINK]2 + 2 = 4."
CALL = (
    f"{ANALYSIS}Need the weather.{NEXT}<|channel|>commentary to=functions.get_weather "
    '<|constrain|>json<|message|>{"city": "Paris"}<|call|>'
)
PARTS = [ANALYSIS, FINAL, "<|channel|>", "<|message|>", "<|end|>", "<|start|>assistant", "<|return|>", "<|call|>",
         "commentary to=functions.f <|constrain|>json", "[THINK]", "[/THINK]", "<", "<|", "\n", "a", "b c", "é"]  # fmt: skip
ANSWERS = st.lists(st.sampled_from(PARTS), max_size=9).map("".join)
TEMPLATE_ENDS = tool_templates.HARMONY_ENDS
HARMONY_TEMPLATE = tool_templates.HARMONY


@given(
    ANSWERS, st.sampled_from(["may", "must", "none"]), st.sampled_from([BRACKETS, CHANNELS]),
    st.lists(st.integers(0, 120), max_size=8),
)  # fmt: skip
@example(HARMONY, "may", CHANNELS, [1, 30, 55, 60, 61, 80])
@example(CALL, "may", CHANNELS, [11, 45, 70, 90, 110])
@example(MAGISTRAL, "may", BRACKETS, [3, 20, 33])
@settings(deadline=None)
def test_pieces_say_what_the_whole_says(answer: str, thinking: Thinking, marks: ThoughtMarks, cuts: list[int]) -> None:
    ends = sorted({min(cut, len(answer)) for cut in cuts} | {len(answer)})
    reader = reader_of(thinking, marks)
    thought = said = ""
    for start, end in zip([0, *ends], ends, strict=False):
        more_thought, more_said = reader.push(answer[start:end])
        thought, said = thought + more_thought, said + more_said
    more_thought, more_said = reader.finish()
    assert parted(answer, thinking, marks) == ((thought + more_thought) or None, said + more_said)


@pytest.mark.parametrize(
    ("answer", "marks", "thinking", "expected"),
    [
        (MAGISTRAL, BRACKETS, "may", ("Okay, 2+2.\nThat is 4.", "2 + 2 = 4.")),
        ("Okay.[/THINK]\n4", BRACKETS, "must", ("Okay.", "4")),
        ("[TOOL_CALLS]x", BRACKETS, "may", (None, "[TOOL_CALLS]x")),
        (HARMONY, CHANNELS, "may", ("User asks 2+2. Simple.", "2 + 2 = 4.")),
        (f"Simple.{NEXT}{FINAL}4", CHANNELS, "must", ("Simple.", "4")),
        (f"{FINAL}4", CHANNELS, "may", (None, "4")),
        ("Plain text <|end", CHANNELS, "may", (None, "Plain text <|end")),
        (f"{ANALYSIS}cut off he", CHANNELS, "may", ("cut off he", "")),
        (f"{ANALYSIS}one{NEXT}<|channel|>fin", CHANNELS, "may", ("one", "")),
        (
            f"{ANALYSIS}one{NEXT}<|channel|>commentary<|message|>I will look.{NEXT}{ANALYSIS}two{NEXT}{FINAL}done",
            CHANNELS, "may", ("one\n\ntwo", "I will look.\n\ndone"),
        ),
        (f"{ANALYSIS}one<|channel|>final<|message|>4", CHANNELS, "may", ("one", "4")),
        ("<|channel|>" + "x" * 300, CHANNELS, "may", (None, "<|channel|>" + "x" * 300)),
    ],
)  # fmt: skip
def test_what_answers_think_and_say(
    answer: str, marks: ThoughtMarks, thinking: Thinking, expected: tuple[str | None, str]
) -> None:
    assert parted(answer, thinking, marks) == expected


@pytest.mark.parametrize("header", [
    "<|channel|>commentary to=functions.get_weather <|constrain|>json",
    " to=functions.get_weather<|channel|>commentary json",
    "<|channel|>commentary to=functions.get_weather code",
])  # fmt: skip
def test_a_part_for_a_function_is_a_call_also_where_the_end_was_not_printed(header: str) -> None:
    form = answer_form(GENERIC, [{"type": "function", "function": {"name": "get_weather"}}])
    for ending in ("<|call|>", ""):
        answer = Answer([], form, thinking="may", thoughts=CHANNELS)
        for token, piece in enumerate(f'{header}<|message|>{{"city": "Paris"}}{ending}'):
            answer.push(token, piece.encode(), token)
        answer.finish(1)
        (call,) = answer.tool_calls
        assert (call.name, json.loads(call.arguments), answer.text) == ("get_weather", {"city": "Paris"}, "")


def test_control_tokens_that_print_nothing_part_what_is_thought_from_what_is_said() -> None:
    marks = {900: b"<|channel|>", 901: b"<|message|>", 902: b"<|end|>", 903: b"<|start|>"}
    tokens = [(900, b""), (1, b"analysis"), (901, b""), (2, b"hm STOP"), (902, b""), (903, b""), (3, b"assistant"),
              (900, b""), (4, b"final"), (901, b""), (5, b"so"), (6, b" it is"), (7, b"STOP")]  # fmt: skip
    answer = Answer(["STOP"], marks=marks, thinking="may", thoughts=CHANNELS)
    events = [e for n, (token, piece) in enumerate(tokens, 1) for e in answer.push(token, piece, n)]
    assert "".join(e.text for e in events if isinstance(e, ThinkingDelta)) == "hm STOP"
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == "so it is"
    assert (answer.thinking, answer.text, answer.stop_string) == ("hm STOP", "so it is", "STOP")


@pytest.mark.parametrize(
    ("template", "marks", "thinking"),
    [
        (HARMONY_TEMPLATE, CHANNELS, "may"),
        (HARMONY_TEMPLATE.replace(TEMPLATE_ENDS, "<|start|>assistant" + ANALYSIS), CHANNELS, "must"),
        (HARMONY_TEMPLATE.replace(TEMPLATE_ENDS, "<|start|>assistant" + FINAL), CHANNELS, "none"),
        ("{% for m in messages %}[INST]{{ m.content }}[/INST]{% endfor %}{# [THINK] #}", BRACKETS, "may"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}[THINK]", BRACKETS, "must"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}<think>\n\n</think>\n\n", THINK, "none"),
        ("{% for m in messages %}<|channel|>{{ m.content }}{% endfor %}", None, "none"),
    ],
)
def test_a_template_says_between_what_marks_its_model_thinks(
    template: str, marks: ThoughtMarks | None, thinking: Thinking
) -> None:
    made = ChatTemplate(template, bos="", eos="")
    assert made.thought_marks == thought_marks_of(template) == marks
    assert made.thinking() == thinking


def test_a_template_with_channels_is_given_thoughts_under_its_own_name() -> None:
    said = [Message(Role.USER, "u"), Message(Role.ASSISTANT, "4", thinking="hm")]
    assert f"{ANALYSIS}hm<|end|>" in ChatTemplate(HARMONY_TEMPLATE, bos="", eos="").render(said)


@pytest.mark.parametrize("thinking", ["may", "must"])
@pytest.mark.parametrize("marks", [THINK, BRACKETS, CHANNELS])
def test_a_schema_holds_behind_the_thoughts(marks: ThoughtMarks, thinking: Thinking) -> None:
    form = answer_form(
        GENERIC, [], json_schema={"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        thinking=thinking, thoughts=marks,
    )  # fmt: skip
    assert form.grammar is not None
    thought = "hm" if thinking == "must" else f"{marks.opening}hm"
    after = grammar_of(form.grammar).start().after(f"{thought}{marks.closing}{marks.resume}{marks.said}")
    assert after.is_possible
    assert after.after('{"a": 5}').may_end
    assert not after.after("so").is_possible
