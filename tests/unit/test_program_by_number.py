"""Operations that name messages or tokens by number are exact; what each operation did is counted."""

from __future__ import annotations

import pytest

from akashic_daemon.errors import BadRequest
from akashic_daemon.program.message_ops import (
    DropMessages,
    DropSelected,
    DropTokens,
    MessageOp,
    ReplaceMessage,
    ReplaceSelected,
    ReposAt,
    by_number,
)
from akashic_daemon.program.selectors import parse
from akashic_daemon.program.weave import compile_ops
from layouts_strategy import layout_of

AGENT = layout_of("su" + "at" * 4)


@pytest.mark.parametrize(
    ("op", "exact"),
    [
        (DropSelected(parse("message 3"), at=9, label="x"), [DropMessages((3,), at=9, label="x")]),
        (DropSelected(parse("messages 3..5"), at=9), [DropMessages((3, 4, 5), at=9)]),
        (DropSelected(parse("tokens 20..22"), at=9), [DropTokens(((20, 23),), at=9)]),
        (
            ReplaceSelected(parse("messages 3..4"), "new", label="y"),
            [ReplaceMessage(3, "new", label="y"), ReplaceMessage(4, "new", label="y")],
        ),
    ],
)
def test_numbers_become_exactly_what_they_name_and_keep_place_and_label(op: MessageOp, exact: list[MessageOp]) -> None:
    found = by_number(op, 10)
    assert found == exact
    assert [o.label for o in found] == [o.label for o in exact]


@pytest.mark.parametrize(
    "op",
    [
        DropSelected(parse("tool[:-2]")),
        DropSelected(parse("tool older than 2 turns")),
        DropSelected(parse("messages 3..999999999999")),
        ReplaceSelected(parse("tool[0]"), "new"),
        DropMessages((3,)),
        ReposAt(),
    ],
)
def test_other_selectors_and_numbers_beyond_the_history_stay_as_they_are(op: MessageOp) -> None:
    assert by_number(op, 10) == [op]


@pytest.mark.parametrize("text", ["message 0", "messages 0..3", "message 1", "tokens 0..12"])
def test_what_is_protected_is_refused_when_it_is_named_and_left_when_it_is_selected(text: str) -> None:
    selected = DropSelected(parse(text), at=10)
    assert compile_ops(AGENT, [selected]).notes
    with pytest.raises(BadRequest, match="protected"):
        compile_ops(AGENT, by_number(selected, 10))


def test_each_operation_is_counted_by_what_it_took_away_or_moved() -> None:
    done = compile_ops(
        AGENT,
        [
            DropMessages((3,), at=6),
            DropMessages((3, 5), at=8),
            ReposAt(at=8),
            DropTokens(((19, 21),), at=9),
            ReplaceMessage(7, (1, 2), at=9),
            DropSelected(parse("tool[0]"), at=9),
            DropSelected(parse("tool[5]"), at=9),
        ],
    )
    assert [(str(op), tokens) for op, tokens in zip(done.ops, done.effects, strict=True)] == [
        ("drop message 3", 5),
        ("drop messages 3, 5", 5),
        ("repos", 19),
        ("drop tokens [19, 21)", 0),
        ("replace message 7", 5),
        ("drop message 7", 2),
    ]
    drops = [t for op, t in zip(done.ops, done.effects, strict=True) if isinstance(op, DropMessages | DropTokens)]
    assert (sum(drops), done.replaced_tokens, done.repos_tokens) == (done.dropped_tokens, 5, 19)
