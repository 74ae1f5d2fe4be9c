"""What must be there before the rest of a path can be computed, and from where on it has to be computed.

Segment-batch recovery (PAPERS section 3) reduced to its plan: going backwards from what the new tokens will read, a
missing cell makes necessary whatever its token had seen. Dropped KV that only served older, still present KV is not
needed and stays a hole.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from akashic_daemon.cache.keys import OpTable, marker_places
from akashic_daemon.cache.node import Node
from akashic_daemon.program.active import ActiveCache, Span
from akashic_daemon.program.path import Move
from akashic_daemon.program.ranges import EMPTY, Range, Ranges, intersect, normal, size, subtract, union


@dataclass(slots=True)
class Needed:
    """Cells by copy (`Span.version`) and trajectory index."""

    cells: dict[int, Ranges] = field(default_factory=dict)

    def add(self, spans: Iterable[Span]) -> None:
        """Add all cells of these spans."""
        ranges: dict[int, list[Range]] = {}
        for span in spans:
            ranges.setdefault(span.version, []).append(span.indices)
        for version, found in ranges.items():
            self.add_ranges(version, normal(found))

    def add_ranges(self, version: int, ranges: Ranges) -> None:
        """Add cells of one copy."""
        self.cells[version] = union(self.cells.get(version, EMPTY), ranges)

    def of(self, version: int, ranges: Ranges) -> Ranges:
        """Return which of these cells of one copy are needed."""
        return intersect(self.cells.get(version, EMPTY), ranges)


@dataclass(frozen=True, slots=True)
class Recovery:
    """`start`: the key's length at which computing (or moving) begins; `missing` tokens before `matched` to compute."""

    start: int
    matched: int
    needed: Needed
    missing: int


def plan_recovery(
    nodes: Sequence[Node], matched: int, key: array[int], ops: OpTable, stored: Ranges = EMPTY
) -> Recovery:
    """Plan for a key whose first `matched` entries lie on `nodes` (root first; the last node may reach further).

    `stored` are the trajectory indices whose KV, as it was computed, a lower tier has: they count as present.
    """
    needed = Needed()
    _read_by_the_rest(nodes[-1], matched, key, ops, needed)
    start, missing_tokens = matched, 0
    for node in reversed(nodes):
        if node.depth >= matched:
            continue
        if node.is_run:
            first, end = node.indices
            end = min(end, first + matched - node.depth)
            present = union(node.resident(), intersect(stored, ((first, end),)))
            missing = subtract(needed.of(0, ((first, end),)), present)
            if missing:
                needed.add(node.before.seen())
                needed.add_ranges(0, ((first, missing[-1][1]),))
                missing = subtract(needed.of(0, ((first, end),)), present)
                missing_tokens += size(missing)
                start = node.depth + missing[0][0] - first
        elif isinstance(node.op, Move):
            version = node.after.repos_count
            missing = subtract(needed.cells.get(version, EMPTY), node.resident())
            if missing:
                for span in node.before.spans:
                    needed.add_ranges(span.version, intersect((span.indices,), missing))
                start = node.depth
    return Recovery(start, matched, needed, missing_tokens)


def _read_by_the_rest(last: Node, matched: int, key: array[int], ops: OpTable, needed: Needed) -> None:
    """Add what the key's tokens after `matched`, and the answer after them, will attend to of what comes before."""
    state: ActiveCache = last.before.append(matched - last.depth) if last.is_run else last.after
    at = matched
    markers = [*marker_places(key[matched:]), len(key) - matched]
    while at < len(key):
        if key[at] < 0:
            op = ops.op(key[at])
            after = state.apply(op)
            if isinstance(op, Move):
                moved = normal(s.indices for s in after.spans if s.version == after.repos_count)
                needed.add(s.cut(*r) for s in state.spans for r in intersect((s.indices,), moved))
            state = after
            at += 1
            continue
        needed.add(state.seen())
        count = markers[bisect_right(markers, at - matched)] + matched - at
        if state.inserting:
            count = min(count, state.inserting)
        state = state.append(count)
        at += count
    needed.add(state.spans)  # a key that ends in an insertion has seen only what precedes that; the answer sees all
