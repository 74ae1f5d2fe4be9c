"""The shortest way to say a path: two programs that do the same become one.

What is compiled must be in it already, or the index would not find one by the other.
"""

from __future__ import annotations

from akashic_daemon.program.active import ActiveCache
from akashic_daemon.program.path import Drop, Insert, Move, Op, Path, PlacedOp
from akashic_daemon.program.ranges import intersect, union


def normal_form(path: Path) -> Path:
    """Return the path without what changes nothing: every token sees and stands as before.

    Drops lose what isn't visible, and vanish when nothing is left; drops that follow each other at one offset join; a
    Repos or Shift that neither moves a token nor the next position vanishes. Idempotent.
    """
    state, out, at = ActiveCache(), list[PlacedOp](), 0
    for placed in path.ops:
        state, at = _append(state, placed.offset - at), placed.offset
        op = _needed(placed.op, state)
        if op is None:
            continue
        state = state.apply(op)
        if isinstance(op, Drop) and out and out[-1].offset == at and isinstance(last := out[-1].op, Drop):
            out[-1] = PlacedOp(at, Drop(union(last.ranges, op.ranges)))
        else:
            out.append(PlacedOp(at, op))
    return Path(path.tokens, tuple(out))


def _append(state: ActiveCache, count: int) -> ActiveCache:
    inserted = min(count, state.inserting)
    return state.append(inserted).append(count - inserted)


def _needed(op: Op, state: ActiveCache) -> Op | None:
    if isinstance(op, Drop):
        seen = intersect(state.indices, op.ranges)
        return Drop(seen) if seen else None
    if isinstance(op, Move):
        after = state.apply(op)
        stays = after.next_position == state.next_position and _places(after) == _places(state)
        return None if stays else op
    return op if isinstance(op, Insert) and op.count else None


def _places(state: ActiveCache) -> list[tuple[int, int, int]]:
    """Return the runs of visible tokens, joined whatever copy they stand in."""
    out: list[tuple[int, int, int]] = []
    for first, length, position, _version in state.spans:
        if out and out[-1][0] + out[-1][1] == first and out[-1][2] + out[-1][1] == position:
            out[-1] = (out[-1][0], out[-1][1] + length, out[-1][2])
        else:
            out.append((first, length, position))
    return out
