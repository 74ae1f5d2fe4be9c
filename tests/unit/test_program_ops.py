"""Operations on messages: what they do, and what is refused with which words."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest

from akashic_daemon.errors import BadRequest
from akashic_daemon.program.layout import Layout
from akashic_daemon.program.message_ops import (
    DropMessages,
    DropSelected,
    DropTokens,
    MessageOp,
    ReplaceMessage,
    ReplaceSelected,
    ReposAt,
)
from akashic_daemon.program.path import MAX_OPS, Drop, Insert, Path, PlacedOp, Repos, Shift
from akashic_daemon.program.policy import load
from akashic_daemon.program.selectors import parse
from akashic_daemon.program.weave import compile_ops
from akashic_daemon.trajectory.message import Message, Role
from akashic_daemon.trajectory.prompt import Prompt
from layouts_strategy import layout_of
from normal_form import normal_form

AGENT = layout_of("su" + "at" * 4)
"""0 system, 1 user, then answers 2, 4, 6, 8 of 7 tokens and tool results 3, 5, 7, 9 of 5; before the prompt 58 tokens."""
GROUPED = layout_of("suattau", [5, 5, 5, 5, 0, 5, 5])
"""Tool results 3 and 4 share one segment."""


def validate(ops: Sequence[MessageOp], layout: Layout) -> None:
    """Raise what compiling raises; texts needn't be rendered for it."""
    compile_ops(layout, ops, render=lambda _message, _text: (0,))


@pytest.mark.parametrize(
    ("layout", "ops", "said"),
    [
        (
            AGENT,
            [DropMessages((3,), at=11)],
            "cache_ops[0] (drop message 3): takes effect before message 11, beyond the",
        ),
        (AGENT, [DropMessages((3,), at=-1)], "takes effect before message -1, but the first message is 0"),
        (
            AGENT,
            [ReposAt(at=4), DropMessages((10,))],
            "cache_ops[1] (drop message 10): there is no message 10; the history",
        ),
        (AGENT, [DropMessages((-1,))], "there is no message -1"),
        (AGENT, [DropMessages(())], "names no message"),
        (AGENT, [DropMessages((3, 5, 3))], "(drop messages 3, 5, 3): names message 3 more than once"),
        (AGENT, [DropMessages((3, 4, 5), at=5)], "(drop messages 3..5): message 5 isn't complete before message 5"),
        (AGENT, [DropMessages((0,))], "message 0 is a system message, and protected"),
        (AGENT, [DropMessages((1,))], "message 1 is the newest user message there, and protected"),
        (AGENT, [DropMessages((3,), label='drop_message["8"]')], None),
        (GROUPED, [DropMessages((3,))], "messages 3..4 share one segment of the model's template (drop all of them"),
        (GROUPED, [DropMessages((3, 4), at=4)], "message 3 isn't complete before message 4"),
        (GROUPED, [ReplaceMessage(4, (1,))], "messages 3..4 share one segment of the model's template, so none"),
        (AGENT, [DropTokens(())], "names no tokens"),
        (AGENT, [DropTokens(((14, 12),))], "the range [14, 12) ends before it starts"),
        (AGENT, [DropTokens(((14, 14),))], "the range [14, 14) is empty"),
        (AGENT, [DropTokens(((14, 500),))], "the range [14, 500) lies outside the prompt's 60 tokens"),
        (AGENT, [DropTokens(((-2, 5),))], "the range [-2, 5) lies outside"),
        (AGENT, [DropTokens(((12, 16), (15, 18)))], "the range [15, 18) overlaps another"),
        (AGENT, [DropTokens(((57, 60),))], "holds the template's scaffolding, which is protected"),
        (AGENT, [DropTokens(((3, 6),))], "holds tokens of a protected message: message 0 is a system message"),
        (AGENT, [DropTokens(((9, 12),))], "message 1 is the newest user message there"),
        (AGENT, [DropTokens(((12, 18),), at=3)], "token 17 doesn't precede message 3, where it takes effect"),
        (AGENT, [ReplaceMessage(0, (1,))], "(replace message 0): message 0 is a system message, and protected"),
        (AGENT, [ReplaceMessage(12, (1,))], "there is no message 12"),
        (AGENT, [DropMessages((3,), at=5), ReplaceMessage(3, (1,), at=6)], "(replace message 3): message 3 is dropped"),
        (AGENT, [ReplaceMessage(3, (), at=5), ReplaceMessage(3, (1,), at=6)], "message 3 is dropped already"),
        (
            AGENT,
            [DropSelected(parse("messages 3..12"))],
            "(drop messages 3..12): message 12 doesn't exist there yet; 10",
        ),
        (AGENT, [ReposAt(at=1)] * (MAX_OPS + 1), "a program of 4097 operations; at most 4096"),
        (layout_of("sua", prompt=False), [DropMessages((2,))], "stands at the end and no token follows it"),
        (layout_of("sua", prompt=False), [ReposAt(at=3)], "stands at the end and no token follows it"),
    ],
)
def test_a_program_that_cannot_be_carried_out_is_refused_by_operation_and_reason(
    layout: Layout, ops: Sequence[MessageOp], said: str | None
) -> None:
    if said is None:
        validate(ops, layout)
        return
    with pytest.raises(BadRequest) as refused:
        validate(ops, layout)
    assert said in str(refused.value)


def test_a_label_of_the_sender_names_the_operation() -> None:
    with pytest.raises(BadRequest, match=r'^drop_message\["8"\] \(drop message 0\): '):
        validate([DropMessages((0,), at=8, label='drop_message["8"]')], AGENT)


def test_a_drop_takes_effect_before_the_message_it_is_placed_at() -> None:
    compiled = compile_ops(AGENT, [DropMessages((3,), at=6)])
    assert compiled.path.ops == (PlacedOp(34, Drop(((17, 22),))),)
    assert compiled.path.tokens == AGENT.tokens
    assert (compiled.dropped_tokens, compiled.visible_tokens, compiled.next_position) == (5, 55, 60)


def test_without_a_place_it_takes_effect_before_the_generation_prompt_and_says_so_in_what_was_done() -> None:
    compiled = compile_ops(AGENT, [DropMessages((3,))])
    assert compiled.ops == (DropMessages((3,), at=10),)
    assert compiled.path.ops[0].offset == AGENT.end


def test_dropping_again_changes_nothing_and_is_counted() -> None:
    first = DropMessages((3,), at=5)
    ops: list[MessageOp] = [first, DropMessages((3, 5), at=8), DropTokens(((17, 20),), at=9)]
    compiled = compile_ops(AGENT, ops)
    assert compiled.path == compile_ops(AGENT, [first, DropMessages((5,), at=8)]).path
    assert (compiled.dropped_tokens, compiled.skipped_tokens) == (10, 8)


def test_an_old_user_message_may_go_and_the_newest_may_when_another_follows_at_once() -> None:
    layout = layout_of("uauau")
    validate([DropMessages((0,)), DropMessages((2,), at=4)], layout)
    with pytest.raises(BadRequest, match="message 2 is the newest user message there"):
        validate([DropMessages((2,), at=3)], layout)


def test_a_replacement_that_fits_stands_at_the_place_of_what_it_replaces() -> None:
    compiled = compile_ops(AGENT, [ReplaceMessage(3, (7, 7), at=6)])
    assert compiled.path.ops == (PlacedOp(34, Drop(((17, 22),))), PlacedOp(34, Insert(17, 2)))
    assert list(compiled.path.tokens[34:36]) == [7, 7]
    assert list(compiled.message_at[33:37]) == [5, 3, 3, 6]
    assert (compiled.replaced_tokens, compiled.replacement_tokens, compiled.notes) == (5, 2, ())


def test_a_replacement_that_does_not_fit_gets_its_room_by_a_repos_and_says_so() -> None:
    compiled = compile_ops(AGENT, [DropMessages((2,), at=5), ReplaceMessage(3, (7,) * 9, at=6)])
    assert compiled.path.ops[1:] == (
        PlacedOp(34, Drop(((17, 22),))),
        PlacedOp(34, Repos(17, 9)),
        PlacedOp(34, Insert(10, 9)),
    )
    assert compiled.notes == ("replace message 3: 9 tokens don't fit where 5 stood; a repos made room",)
    assert compiled.repos_tokens == 12


def test_a_replacement_of_the_last_message_needs_no_room() -> None:
    compiled = compile_ops(AGENT, [ReplaceMessage(9, (7,) * 9)])
    assert [type(p.op) for p in compiled.path.ops] == [Drop, Insert]
    assert compiled.notes == ()


def test_a_replacement_can_be_replaced_and_dropped_like_the_message_it_stands_for() -> None:
    ops: list[MessageOp] = [ReplaceMessage(3, (7, 7), at=5), ReplaceMessage(3, (8,), at=6), DropMessages((3,), at=8)]
    compiled = compile_ops(AGENT, ops)
    assert (compiled.replaced_tokens, compiled.replacement_tokens, compiled.dropped_tokens) == (7, 3, 1)
    assert [p.op for p in compiled.path.ops if isinstance(p.op, Drop)] == [
        Drop(((17, 22),)),
        Drop(((29, 31),)),
        Drop(((36, 37),)),
    ]


def test_a_text_is_rendered_for_the_message_whose_place_it_takes() -> None:
    asked: list[tuple[int, str]] = []

    def render(message: int, text: str) -> Sequence[int]:
        asked.append((message, text))
        return (1, 2)

    compiled = compile_ops(AGENT, [ReplaceSelected(parse("tool[:2]"), "[omitted]", at=8)], render=render)
    assert asked == [(3, "[omitted]"), (5, "[omitted]")]
    assert compiled.ops == (ReplaceMessage(3, "[omitted]", at=8), ReplaceMessage(5, "[omitted]", at=8))


def test_a_selector_leaves_what_is_protected_and_says_so() -> None:
    compiled = compile_ops(AGENT, [DropSelected(parse("messages[:4]"))])
    assert compiled.ops == (DropMessages((2, 3), at=10),)
    assert compiled.notes == (
        "drop messages[:4]: message 0 is a system message; it stays",
        "drop messages[:4]: message 1 is the newest user message there; it stays",
    )


def test_a_selector_leaves_a_group_of_which_it_means_only_a_part() -> None:
    compiled = compile_ops(GROUPED, [DropSelected(parse("tool[:1]"))])
    assert compiled.ops == ()
    assert "messages 3..4 share one segment of the template and only leave together" in compiled.notes[0]
    assert compile_ops(GROUPED, [DropSelected(parse("tool"))]).dropped_tokens == 5


def test_an_operation_inside_a_group_takes_effect_behind_it_and_says_so() -> None:
    compiled = compile_ops(GROUPED, [DropMessages((2,), at=4)])
    assert compiled.ops == (DropMessages((2,), at=5),)
    assert compiled.notes == (
        "cache_ops[0] (drop message 2) takes effect before message 5: 4 has no border of its own",
    )


def test_the_head_of_a_prompt_stays_when_its_first_message_goes() -> None:
    layout = layout_of("uauau", head=2)
    assert compile_ops(layout, [DropMessages((0,))]).path.ops[0].op == Drop(((2, 5),))
    with pytest.raises(BadRequest, match="scaffolding"):
        validate([DropTokens(((1, 4),))], layout)


def test_a_message_that_was_left_out_of_the_window_can_be_dropped_but_not_replaced() -> None:
    tokens = array("i", range(8))
    prompt = Prompt(tokens, array("i", [0, 0, 3, 3, 4, 4, 5, 5]), first_message=3, left_out_messages=2)
    messages = [Message(role, "m") for role in (Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.USER, Role.ASSISTANT)]
    layout = Layout.of(messages, prompt)
    assert compile_ops(layout, [DropMessages((1, 2), at=4)]).path.ops == ()
    with pytest.raises(BadRequest, match="message 2 was left out of the prompt"):
        validate([ReplaceMessage(2, "x", at=4)], layout)


def test_rules_that_begin_later_leave_what_was_computed_before() -> None:
    rules = load("tool-rolling-drop:keep=1").bound(1000)
    compiled = compile_ops(AGENT, rules=rules, since=8)
    assert compiled.ops == (DropMessages((3, 5), at=8), DropMessages((7,), at=10))


def test_operations_come_before_the_rules_of_the_same_place() -> None:
    rules = load("tool-rolling-drop:keep=1").bound(1000)
    compiled = compile_ops(AGENT, [DropMessages((3,), at=6)], rules=rules)
    assert compiled.ops == (DropMessages((3,), at=6), DropMessages((5,), at=8), DropMessages((7,), at=10))


def test_programs_that_do_the_same_have_one_normal_form() -> None:
    tokens = AGENT.tokens
    spoken = Path(tokens, (PlacedOp(30, Drop(((2, 4),))), PlacedOp(30, Drop(((3, 6),))), PlacedOp(40, Drop(((2, 8),)))))
    short = Path(tokens, (PlacedOp(30, Drop(((2, 6),))), PlacedOp(40, Drop(((6, 8),)))))
    assert normal_form(spoken) == short
    idle = Path(tokens, (PlacedOp(4, Repos()), PlacedOp(9, Drop(())), PlacedOp(12, Insert(12, 0))))
    assert normal_form(idle).ops == ()
    assert normal_form(Path(tokens, (PlacedOp(4, Shift(1, 3, 0)), PlacedOp(4, Shift(9, 12, 5))))).ops == ()
    for move in (Repos(), Shift(2, 4, -1), Shift(2, 4, 3)):
        moving = Path(tokens, (PlacedOp(4, Drop(((1, 2),))), PlacedOp(4, move)))
        assert normal_form(moving) == moving
