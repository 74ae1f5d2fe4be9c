"""Nodes of the radix index, and who holds which cells.

A node is a *run* of tokens or one cache operation (a *marker*). A node that owns cells is a *home*: a run owns the KV of
its tokens as they were computed, a marker that moves tokens owns the copies that it made. `held` says which sequence holds
which of them, by trajectory index; what nobody holds is a *hole*, which recovery may fill.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from akashic_daemon.program.active import ActiveCache, Span
from akashic_daemon.program.path import Move, Op
from akashic_daemon.program.ranges import EMPTY, Range, Ranges, union
from akashic_daemon.types import SequenceId


class Node:
    """`key` is the run's tokens, or the marker; `before` the active cache where it begins; `depth` its place in the key."""

    __slots__ = ("_after", "before", "children", "depth", "held", "key", "last_used", "op", "parent", "pins", "tips")

    def __init__(self, parent: Node | None, key: array[int], before: ActiveCache, depth: int, op: Op | None) -> None:
        self.parent = parent
        self.key = key
        self.before = before
        self.depth = depth
        self.op = op
        self.children: dict[int, Node] = {}
        self.tips: set[SequenceId] = set()
        self.held: dict[SequenceId, Ranges] = {}
        self.pins = 0
        self.last_used = 0
        self._after: ActiveCache | None = None

    @property
    def end(self) -> int:
        """The key's length up to and with this node."""
        return self.depth + len(self.key)

    @property
    def is_run(self) -> bool:
        """Whether it is tokens (the empty root counts as such)."""
        return self.op is None

    @property
    def indices(self) -> Range:
        """A run's trajectory indices."""
        first = self.before.next_index
        return (first, first + len(self.key)) if self.is_run else (first, first)

    @property
    def next_position(self) -> int:
        """Where a token after this node stands."""
        if not self.is_run:
            return self.after.position
        if self.before.inserting:
            return self.after.position
        return self.before.next_position + len(self.key)

    @property
    def after(self) -> ActiveCache:
        """The active cache where it ends."""
        if self.op is None:
            return self.before.append(len(self.key))
        if self._after is None:
            self._after = self.before.apply(self.op)
        return self._after

    def room_to_grow(self) -> int | None:
        """Return how many tokens the run may still take, None for no limit: insertions end where they said."""
        return self.before.inserting - len(self.key) if self.before.inserting else None

    def resident(self) -> Ranges:
        """Return which of its cells anybody holds."""
        out = EMPTY
        for ranges in self.held.values():
            out = union(out, ranges) if out else ranges
        return out

    def cells(self) -> tuple[Span, ...]:
        """Return its own cells, where they stand."""
        if self.op is None:
            start, end = self.indices
            return (Span(start, end - start, self.before.position, 0),) if end > start else ()
        if isinstance(self.op, Move):
            version = self.after.repos_count
            return tuple(s for s in self.after.spans if s.version == version)
        return ()

    def positions(self, ranges: Ranges) -> list[Range]:
        """Return where the cells with these indices stand, as position ranges."""
        out: list[Range] = []
        for span in self.cells():
            for start, end in ranges:
                low, high = max(start, span.first), min(end, span.first + span.length)
                if low < high:
                    out.append((span.position + low - span.first, span.position + high - span.first))
        return out


class Lineage:
    """The nodes from the root to one node, to find the home of any visible cell."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self._runs = [n for n in nodes if n.is_run and n.key]
        self._firsts = [n.before.next_index for n in self._runs]
        self._moves = [n for n in nodes if isinstance(n.op, Move)]

    @staticmethod
    def of(node: Node) -> Lineage:
        """Return the lineage of a node."""
        nodes: list[Node] = []
        at: Node | None = node
        while at is not None:
            nodes.append(at)
            at = at.parent
        nodes.reverse()
        return Lineage(nodes)

    def pieces(self, span: Span) -> Iterator[tuple[Node, Span]]:
        """Yield a span cut at the borders of its homes."""
        if span.version:
            yield self._moves[span.version - 1], span
            return
        at, end = span.indices
        number = bisect_right(self._firsts, at) - 1
        while at < end:
            run = self._runs[number]
            stop = min(end, run.indices[1])
            yield run, span.cut(at, stop)
            at, number = stop, number + 1
