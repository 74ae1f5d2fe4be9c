"""Borders found among neighbours are those that whole renders find, for templates with habits of all kinds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

import tool_templates
from akashic_daemon.trajectory import borders
from akashic_daemon.trajectory.message import Message, Role, ToolCall
from akashic_daemon.trajectory.template import ChatTemplate, Rendered
from layouts_strategy import TOOLS_IN_ONE_TURN

THOUGHTS_SINCE_THE_LAST_QUESTION = (
    "{% set ns = namespace(last=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' and loop.index0 > ns.last "
    "and (loop.last or m.reasoning_content) %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}\n"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
FAR_SIGHTED = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ messages[0].content if loop.index0 % 9 == 5 }}{% endfor %}"
)
"""Says what stands at the very beginning again and again, by the number of the message."""
COUNTS = "{% for m in messages %}{{ loop.index }}:{{ m.role }} {{ m.content }}\n{% endfor %}"
"""No neighbour knows a message's number."""
SWALLOWS = "{% for m in messages %}{% if m.role != 'tool' %}[{{ m.role }}]{{ m.content | trim }}{% endif %}{% endfor %}"
NAMES = ("HERMES", "TEXT_ARGUMENTS", "MISTRAL", "LLAMA", "THINKING", "DEEPSEEK")
TEMPLATES = {
    **{name.lower(): getattr(tool_templates, name) for name in NAMES},
    "tools_in_one_turn": TOOLS_IN_ONE_TURN,
    "thoughts_since_the_last_question": THOUGHTS_SINCE_THE_LAST_QUESTION,
    "far_sighted": FAR_SIGHTED,
    "counts": COUNTS,
    "swallows": SWALLOWS,
}
TOOL = {"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}
words = st.text("ab \n[]<", max_size=6)


@st.composite
def turns(draw: st.DrawFn) -> list[Message]:
    """Return what one question leads to: calls, results and answers."""
    out = [Message(Role.USER, draw(words))]
    for _ in range(draw(st.integers(0, 4))):
        ids = [f"call{n:05}" for n in range(draw(st.integers(0, 3)))]
        calls = tuple(ToolCall(i, "ls", '{"a": 1}') for i in ids)
        out.append(Message(Role.ASSISTANT, draw(words), thinking=draw(st.none() | words), tool_calls=calls))
        out += [Message(Role.TOOL, draw(words), tool_call_id=i) for i in ids]
    return out


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """Return a conversation whose messages are few of many: long ones repeat themselves."""
    some = draw(st.lists(turns(), min_size=1, max_size=5))
    order = draw(st.lists(st.sampled_from(some), min_size=1, max_size=14))
    return [message for turn in order for message in turn]


@pytest.fixture(autouse=True)
def neighbours_are_asked_early() -> Iterator[None]:
    with patch.object(borders, "EXACT_MESSAGES", 2):
        yield


def ends(rendered: Rendered) -> dict[int, int]:
    """Return where the messages end that have a border of their own."""
    lengths = itertools.accumulate(len(segment.text) for segment in rendered.segments)
    return {s.end_message: end for s, end in zip(rendered.segments, lengths, strict=True) if s.messages}


@pytest.mark.parametrize("source", TEMPLATES.values(), ids=TEMPLATES)
@given(messages=conversations(), tools=st.booleans(), later=st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_neighbours_find_every_border_that_whole_renders_find(
    source: str, messages: list[Message], tools: bool, later: int
) -> None:
    shown = [TOOL] if tools else []
    made, exactly = (ChatTemplate(source, bos="<s>", eos="</s>") for _ in range(2))
    for part in (messages[:-later] or messages, messages):
        found = made.segments(part, tools=shown)
        with patch.object(borders, "EXACT_MESSAGES", 10**9):
            expected = exactly.segments(part, tools=shown)
        assert found.text == expected.text
        assert ends(found).items() >= ends(expected).items()


def test_a_long_history_is_rendered_a_few_times_not_once_a_message() -> None:
    made = ChatTemplate(tool_templates.HERMES, bos="", eos="")
    rendered = 0
    seen_by_template = made._render

    def counted(seen: list[dict[str, Any]], shown: list[Any], opening: bool, think: bool | None = None) -> str:
        nonlocal rendered
        rendered += len(seen)
        return seen_by_template(seen, shown, opening, think)

    made._render = counted  # type: ignore[method-assign, assignment]
    one = [Message(Role.USER, "go on"), Message(Role.ASSISTANT, "yes")]
    assert len(made.segments(one * 1000).segments) == 2001
    assert rendered < 2000 * 10
