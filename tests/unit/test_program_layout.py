"""Layouts: where messages stand among tokens, built from real templates."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest

from akashic_daemon.program.layout import Layout, preamble
from akashic_daemon.trajectory.message import Message, Role
from akashic_daemon.trajectory.prompt import Prompt
from akashic_daemon.trajectory.template import ChatTemplate
from layouts_strategy import CHATML, TOOLS_IN_ONE_TURN, layout_of, rendered_layout

WITH_PREAMBLE = "<system>default</>" + CHATML


def _text(layout: Layout, message: int) -> str:
    return "".join(bytes(layout.tokens[a:b].tolist()).decode() for a, b in layout.messages[message].ranges)


def test_a_message_owns_its_text_with_its_role_marks() -> None:
    layout = rendered_layout(
        CHATML, [Message(Role.SYSTEM, "s"), Message(Role.USER, "hello"), Message(Role.ASSISTANT, "hi")]
    )
    assert [_text(layout, i) for i in range(3)] == ["<system>s</>", "<user>hello</>", "<assistant>hi</>"]
    assert layout.has_generation_prompt
    assert bytes(layout.tokens[layout.end :].tolist()) == b"<assistant>"
    assert not any(m.approximate for m in layout.messages)


def test_without_a_generation_prompt_the_layout_ends_with_its_last_message() -> None:
    layout = rendered_layout(CHATML, [Message(Role.USER, "hello")], prompt=False)
    assert layout.end == len(layout.tokens)
    assert not layout.has_generation_prompt


def test_messages_that_a_template_puts_in_one_segment_form_a_group() -> None:
    tools = [Message(Role.TOOL, "one"), Message(Role.TOOL, "two")]
    layout = rendered_layout(
        TOOLS_IN_ONE_TURN, [Message(Role.USER, "q"), Message(Role.ASSISTANT, "c"), *tools, Message(Role.ASSISTANT, "e")]
    )
    assert [m.group for m in layout.messages] == [(0, 1), (1, 2), (2, 4), (2, 4), (4, 5)]
    assert _text(layout, 2) == "<user>[one][two]</>"
    assert layout.messages[3].ranges == ()
    assert layout.messages[3].present
    assert layout.messages[2].approximate
    assert (layout.border(3), layout.border(2), layout.border(5)) == (4, 2, 5)


def test_what_the_template_puts_before_the_first_message_can_be_named_as_nobody_s() -> None:
    preamble = len("<system>default</>")
    layout = rendered_layout(WITH_PREAMBLE, [Message(Role.USER, "q")], head_tokens=preamble)
    assert _text(layout, 0) == "<user>q</>"
    assert layout.offset(0) == 0


@pytest.mark.parametrize(
    ("template", "found"), [(CHATML, ""), (WITH_PREAMBLE, "<system>default</>"), ("{{ messages[0].content }}", "")]
)
def test_a_template_s_preamble_is_told_from_the_first_user_message(template: str, found: str) -> None:
    chat = ChatTemplate(template, bos="", eos="")

    def render(messages: Sequence[Message]) -> str:
        return chat.render(messages, add_generation_prompt=False)

    assert preamble(render, Message(Role.USER, "question")) == found
    assert preamble(render, Message(Role.SYSTEM, "question")) == ""


def test_a_message_that_was_left_out_of_the_window_is_not_there_and_in_no_group() -> None:
    messages = [Message(Role.SYSTEM, "s"), *(Message(Role.USER, str(i)) for i in range(4))]
    owners = array("i", [0, 0, 3, 3, 4, 5])
    layout = Layout.of(messages, Prompt(array("i", range(6)), owners, first_message=3, left_out_messages=2))
    assert [m.present for m in layout.messages] == [True, False, False, True, True]
    assert [m.group for m in layout.messages] == [(i, i + 1) for i in range(5)]
    assert layout.offset(1) == layout.offset(3) == 2


def test_reasoning_is_found_by_its_marks_and_reaches_from_the_one_to_the_other() -> None:
    layout = layout_of("uaa", thinking=[1])
    ((start, end),) = layout.messages[1].thinking
    assert list(layout.tokens[start:end]) == [903, 5, 6, 904]
    assert [m.has_thinking for m in layout.messages] == [False, True, False]


def test_reasoning_that_the_template_left_out_does_not_count() -> None:
    messages = [Message(Role.ASSISTANT, "a", thinking="hm")]
    prompt = Prompt(array("i", [1, 2, 3]), array("i", [0, 0, 0]))
    assert not Layout.of(messages, prompt, thinking_marks=((8,), (9,))).messages[0].has_thinking
    unknown = Layout.of(messages, prompt).messages[0]
    assert unknown.has_thinking
    assert unknown.thinking == ()


def test_an_opening_mark_without_a_closing_one_is_no_reasoning() -> None:
    messages = [Message(Role.ASSISTANT, "<think>a")]
    prompt = Prompt(array("i", [8, 2, 9]), array("i", [0, 0, 0]))
    assert Layout.of(messages, prompt, thinking_marks=((8,), (9, 9))).messages[0].thinking == ()
    assert Layout.of(messages, prompt, thinking_marks=((8,), (9,))).messages[0].thinking == ((0, 3),)
