"""The naive twin: what each token of a path attends to, told token by token, slowly and obviously.

Everything else (spans, radix index, engines) is compared with this. DESIGN section 4 is its specification.
"""

from __future__ import annotations

from dataclasses import dataclass

from akashic_daemon.program.path import Drop, Insert, Path, Repos, Shift


@dataclass(slots=True)
class View:
    """What one token saw when it was computed: its own position, and (index, position) of what it attends to."""

    position: int
    sees: dict[int, int]


@dataclass(slots=True)
class Oracle:
    """`views[i]` of token i; `positions` of the visible tokens at the end; the next position."""

    views: list[View]
    positions: dict[int, int]
    next_position: int


def run(path: Path) -> Oracle:
    """Walk the path token by token."""
    positions: dict[int, int] = {}
    views: list[View] = []
    next_position = 0
    insert_at = inserting = 0
    placed = list(path.ops)
    for index in range(len(path.tokens) + 1):
        while placed and placed[0].offset == index:
            op = placed.pop(0).op
            if isinstance(op, Drop):
                for start, end in op.ranges:
                    for dropped in range(start, end):
                        positions.pop(dropped, None)
            elif isinstance(op, Repos):
                positions, next_position = _renumber(positions, op)
            elif isinstance(op, Shift):
                positions = {i: p + op.by if op.start <= p < op.end else p for i, p in positions.items()}
                next_position = max(next_position, *(p + 1 for p in positions.values()), 0)
            elif isinstance(op, Insert):
                insert_at, inserting = op.position, op.count
        if index == len(path.tokens):
            break
        if inserting:
            views.append(View(insert_at, {i: p for i, p in positions.items() if p < insert_at}))
            positions[index] = insert_at
            insert_at, inserting = insert_at + 1, inserting - 1
            next_position = max(next_position, insert_at)
        else:
            views.append(View(next_position, dict(positions)))
            positions[index] = next_position
            next_position += 1
        views[-1].sees[index] = views[-1].position
    return Oracle(views, positions, next_position)


def _renumber(positions: dict[int, int], op: Repos) -> tuple[dict[int, int], int]:
    out: dict[int, int] = {}
    at, hole = 0, op.hole
    for index, position in sorted(positions.items(), key=lambda item: item[1]):
        if hole and position >= op.hole_at:
            at, hole = at + hole, 0
        out[index] = at
        at += 1
    return out, at + hole
