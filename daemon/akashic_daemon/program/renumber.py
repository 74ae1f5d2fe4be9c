"""A client's operations in the numbers of a history into which memory put messages of its own.

The client counts the messages that it sent. What was recalled stands before a question, so an operation that takes
effect before the question takes effect before what was recalled for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from akashic_daemon.program.message_ops import (
    DropMessages,
    DropSelected,
    DropTokens,
    MessageOp,
    ReplaceMessage,
    ReplaceSelected,
    by_number,
    refusal,
)
from akashic_daemon.program.selectors import ByNumber


def renumbered(op: MessageOp, places: Sequence[int]) -> list[MessageOp]:
    """Return the operation as it is meant, its numbers those of the longer history.

    places: where each message that was sent stands, ascending. Raises BadRequest for tokens by number, and for numbers
    of messages that weren't sent: in the longer history they would mean others.
    """
    return [moved for one in by_number(op, len(places)) for moved in _moved(one, places)]


def _moved(op: MessageOp, places: Sequence[int]) -> list[MessageOp]:
    if isinstance(op, DropTokens):
        raise refusal(
            op,
            "names tokens by number in a request that uses memory: what is recalled moves their numbers",
            "name messages, or send memory: false",
        )
    if isinstance(op, DropMessages):
        numbers = op.messages
    elif isinstance(op, ReplaceMessage):
        numbers = (op.message,)
    else:
        numbers = _beyond(op)
    for number in numbers:
        if not 0 <= number < len(places):
            raise refusal(op, f"there is no message {number}; {len(places)} were sent, from 0 to {len(places) - 1}")
    if op.at is not None and not 0 <= op.at <= len(places):
        raise refusal(op, f"takes effect before message {op.at}, but {len(places)} messages were sent")
    at = None if op.at is None else _border(op.at, places)
    moved: MessageOp = replace(op, at=at)
    if isinstance(op, DropMessages):
        moved = DropMessages(tuple(places[m] for m in op.messages), at=at, label=op.label)
    elif isinstance(op, ReplaceMessage):
        moved = ReplaceMessage(places[op.message], op.replacement, at=at, label=op.label)
    if str(moved) != str(op):
        # Errors and notes speak of the longer history, which the session has: say what was sent, too.
        moved = replace(moved, label=f"{op.label}, sent as {op}")
    return [moved]


def _beyond(op: MessageOp) -> tuple[int, ...]:
    """Return the last number of a selector by number, which is one only if it is beyond the history: see `by_number`."""
    selector = op.selector if isinstance(op, DropSelected | ReplaceSelected) else None
    return (selector.last,) if isinstance(selector, ByNumber) and isinstance(selector.last, int) else ()


def _border(at: int, places: Sequence[int]) -> int:
    """Return where the messages before message `at` end: before what was recalled for it."""
    return places[at - 1] + 1 if at else 0
