"""Why a prompt could not reuse more, and what became of each of its messages.

Compares the route taken with what the same session computed before. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from akashic_daemon.cache.tree import common_length
from akashic_daemon.program.active import active_cache
from akashic_daemon.program.align import Edit, Trace
from akashic_daemon.program.ranges import Range
from akashic_daemon.program.route import Route
from akashic_daemon.protocol.native import Miss, MissCause
from akashic_daemon.types import BLOCK_TOKENS

_QUOTED_TOKENS = 12
_CAUSE_OF: dict[str, MissCause] = {
    "removed": "message_removed",
    "shortened": "message_replaced",
    "replaced": "message_replaced",
    "extended": "message_replaced",
    "inserted": "message_inserted",
    "volatile_text": "volatile_text",
    "arguments_reserialised": "arguments_reserialised",
    "tokenized_otherwise": "tokenization_differs",
}
ToText = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class Before:
    """What a session computed before.

    edits: how the request's history differs from it. editable_tokens: what the request would compute as cache operations
    on it, None when that isn't possible. changed: what of the model has changed since; then nothing of it can be reused.
    """

    trace: Trace
    edits: Sequence[Edit] = ()
    editable_tokens: int | None = None
    tools_reordered: bool = False
    changed: str | None = None


def explain_miss(
    route: Route, first: int, before: Before | None, *, prompt_tokens: int, window_moved: bool, to_text: ToText
) -> Miss | None:
    """Say why computing begins at token `first` of the route and not later; None when the prompt only grew."""
    tokens = route.path.tokens
    if before is None:
        return Miss(cause="new_session" if first else "cold", at_token=first, at_message=_owner(route, first))
    trace = before.trace
    earlier = trace.path.tokens if route.path.ops or not trace.path.ops else trace.tokens
    same = common_length(tokens, earlier)
    if before.changed is not None:
        return _changed(route, first, same, len(earlier), before)
    divided = _ops_differ(route, trace) if route.path.ops else None
    if divided is not None and divided < same:
        return Miss(cause="program_differs", at_token=divided, at_message=_owner(route, divided))
    if same >= len(tokens) - 1 and first >= same - 1:
        return None
    held = min(same, len(tokens) - 1, len(earlier) - 1)
    could = prompt_tokens - before.editable_tokens if before.editable_tokens is not None else held
    ends_here = same >= len(tokens) - 1 or same >= len(earlier)
    if first < held and (ends_here or held - first >= BLOCK_TOKENS):
        return Miss(
            cause="evicted",
            at_token=first,
            at_message=_owner(route, first),
            could_reuse=held,
            detail="less than a block, the last of a turn" if held - first < BLOCK_TOKENS else None,
        )
    if same >= len(earlier) or route.kind == "edited":
        return None
    expected = to_text(earlier[same : same + _QUOTED_TOKENS])
    got = to_text(tokens[same : same + _QUOTED_TOKENS])
    return Miss(
        cause=_cause(before, route, same >= len(earlier) - _tail_tokens(trace), expected, got, window_moved),
        at_token=same,
        at_message=_owner(route, same),
        expected=expected,
        got=got,
        could_reuse=could if before.edits and could > same else 0,
    )


def _changed(route: Route, first: int, same: int, earlier_tokens: int, before: Before) -> Miss | None:
    """Say that another model computed it, unless this one has computed as much since."""
    held = min(same, len(route.path.tokens) - 1, earlier_tokens - 1)
    if first >= held and same >= earlier_tokens - 1:
        return None
    return Miss(
        cause="model_changed",
        at_token=first,
        at_message=_owner(route, first),
        could_reuse=held if held > first else 0,
        detail=before.changed,
    )


def _cause(before: Before, route: Route, in_answer: bool, expected: str, got: str, window_moved: bool) -> MissCause:
    if window_moved:
        return "window_moved"
    if before.tools_reordered:
        return "tools_reordered"
    if _alike(expected, got):
        return "tokenization_differs"
    if in_answer:
        return "answer_differs"
    if route.kind == "plain" and before.edits:
        return _CAUSE_OF[before.edits[0].kind]
    return "text_differs"


def _tail_tokens(trace: Trace) -> int:
    """Return how many tokens of the trace are the last prompt's open end and its answer."""
    return len(trace.entries[-1].tokens) if trace.open_tail and trace.entries else 0


def _ops_differ(route: Route, trace: Trace) -> int | None:
    """Return the offset of the first operation that one has and the other hasn't, before the trace's end."""
    mine, theirs = route.path.ops, trace.path.ops
    for number in range(max(len(mine), len(theirs))):
        a = mine[number] if number < len(mine) else None
        b = theirs[number] if number < len(theirs) else None
        if a != b:
            return min(op.offset for op in (a, b) if op is not None)
    return None


def _alike(a: str, b: str) -> bool:
    short = min(len(a), len(b)) - 4
    return short > 4 and a[:short] == b[:short]


def _owner(route: Route, token: int) -> int | None:
    return route.owners[token] if token < len(route.owners) and route.owners[token] >= 0 else None


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of one message's tokens; `message` is None for what the request doesn't have any more."""

    message: int | None
    tokens: int
    reused: int
    moved: int
    dropped: int
    computed: int


def fates(route: Route, computed: Sequence[Range]) -> list[Fate]:
    """Return what became of each message, in order; the prompt's open end counts as the last."""
    count = len(route.path.tokens)
    owners = np.frombuffer(route.owners, np.int32)
    visible, moved = np.zeros(count, bool), np.zeros(count, bool)
    for span in active_cache(route.path).spans:
        start, end = span.indices
        visible[start:end] = True
        moved[start:end] = span.version > 0
    fresh = np.zeros(count, bool)
    for start, end in computed:
        fresh[start:end] = True
    out = []
    for owner in sorted(set(owners.tolist()), key=lambda o: (o < 0, o)):
        mine = owners == owner
        seen = mine & visible
        out.append(
            Fate(
                message=None if owner < 0 else owner,
                tokens=int(mine.sum()),
                reused=int((seen & ~fresh & ~moved).sum()),
                moved=int((seen & ~fresh & moved).sum()),
                dropped=int((mine & ~visible).sum()),
                computed=int((seen & fresh).sum()),
            )
        )
    return out
