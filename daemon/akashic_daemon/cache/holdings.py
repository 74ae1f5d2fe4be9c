"""Who holds which cells: the accounts behind the radix index, and the engine calls that follow from them.

Every cell belongs to one home (see `node`). The number of cells in use is the number of distinct held cells; nothing is
stored twice. Sharing and releasing change who holds a cell, never its content (invariants 2 and 4).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from akashic_daemon.cache.node import Lineage, Node
from akashic_daemon.program.active import Span
from akashic_daemon.program.ranges import EMPTY, Range, Ranges, intersect, normal, size, subtract, union
from akashic_daemon.types import SequenceId


class Cells(Protocol):
    """What the index needs of an engine."""

    def share(self, source: SequenceId, target: SequenceId, start: int, end: int) -> None:
        """Let `target` hold the cells of `source` at start <= p < end too."""

    def release(self, sequence: SequenceId, start: int = 0, end: int = -1) -> None:
        """Let `sequence` let go of start <= p < end (-1: to the end)."""

    def save(self, sequence: SequenceId, ranges: Sequence[Range]) -> Any:
        """Copy out the cells of `sequence` at these position ranges, which ascend."""

    def load(self, saved: Any, sequence: SequenceId, ranges: Sequence[Range]) -> None:
        """Add new cells with the saved KV at these position ranges, rotated where the position differs."""


class Watched:
    """The cells, and the first error by which who holds them became uncertain: no account of them may be believed then.

    `save` and `load` that raise have changed nothing; of `share` and `release` nobody knows how far they came.
    """

    def __init__(self, cells: Cells) -> None:
        self._cells = cells
        self.failed: Exception | None = None

    def share(self, source: SequenceId, target: SequenceId, start: int, end: int) -> None:
        """Share, and remember a failure."""
        try:
            self._cells.share(source, target, start, end)
        except Exception as error:
            self.failed = self.failed or error
            raise

    def release(self, sequence: SequenceId, start: int = 0, end: int = -1) -> None:
        """Release, and remember a failure."""
        try:
            self._cells.release(sequence, start, end)
        except Exception as error:
            self.failed = self.failed or error
            raise

    def save(self, sequence: SequenceId, ranges: Sequence[Range]) -> Any:
        """Copy out."""
        return self._cells.save(sequence, ranges)

    def load(self, saved: Any, sequence: SequenceId, ranges: Sequence[Range]) -> None:
        """Add what was copied out."""
        self._cells.load(saved, sequence, ranges)


class Holdings:
    """`total` is the engine's number of cells."""

    def __init__(self, cells: Cells, total: int) -> None:
        self._cells = cells
        self._homes: dict[SequenceId, dict[Node, None]] = {}
        self.total = total
        self.used = 0
        self.evicted = 0

    @property
    def free(self) -> int:
        """Cells that nothing holds."""
        return self.total - self.used

    def homes(self, sequence: SequenceId) -> list[Node]:
        """Return the homes of which the sequence holds cells."""
        return list(self._homes.get(sequence, ()))

    def holders(self) -> list[SequenceId]:
        """Return the sequences that hold anything."""
        return list(self._homes)

    def count(self, sequence: SequenceId) -> int:
        """Return how many cells a sequence holds."""
        return sum(size(n.held[sequence]) for n in self._homes.get(sequence, ()))

    def hold(self, sequence: SequenceId, home: Node, ranges: Ranges) -> None:
        """Record that `sequence` now holds these cells of `home`."""
        mine = home.held.get(sequence, EMPTY)
        added = subtract(ranges, mine)
        if not added:
            return
        self.used += size(subtract(added, home.resident()))
        home.held[sequence] = union(mine, added)
        self._homes.setdefault(sequence, {})[home] = None

    def grow(self, sequence: SequenceId, home: Node, count: int) -> None:
        """Record `count` new cells at the end of a run that only `sequence` extends; the run has grown already."""
        end = home.indices[1]
        home.held[sequence] = union(home.held.get(sequence, EMPTY), ((end - count, end),))
        self._homes.setdefault(sequence, {})[home] = None
        self.used += count

    def let_go(self, sequence: SequenceId, home: Node, ranges: Ranges) -> int:
        """Release these cells of `home`; returns how many are free now."""
        mine = home.held.get(sequence, EMPTY)
        gone = intersect(mine, ranges)
        if not gone:
            return 0
        for start, end in home.positions(gone):
            self._cells.release(sequence, start, end)
        return self._forget(sequence, home, gone)

    def drop_surplus(self, sequence: SequenceId, start: int, end: int) -> None:
        """Release cells at these positions that were loaded with others and that nobody accounts for."""
        self._cells.release(sequence, start, end)

    def let_go_all(self, sequence: SequenceId) -> int:
        """Release everything a sequence holds; returns how many cells are free now."""
        homes = self._homes.get(sequence)
        if homes is None:
            return 0
        self._cells.release(sequence)
        return sum(self._forget(sequence, home, home.held[sequence]) for home in list(homes))

    def _forget(self, sequence: SequenceId, home: Node, gone: Ranges) -> int:
        rest = subtract(home.held[sequence], gone)
        if rest:
            home.held[sequence] = rest
        else:
            del home.held[sequence]
            del self._homes[sequence][home]
            if not self._homes[sequence]:
                del self._homes[sequence]
        freed = size(subtract(gone, home.resident()))
        self.used -= freed
        return freed

    def unique(self, sequence: SequenceId, home: Node) -> Ranges:
        """Return which cells of `home` only this sequence holds."""
        mine = home.held.get(sequence, EMPTY)
        for other, ranges in home.held.items():
            if other != sequence and mine:
                mine = subtract(mine, ranges)
        return mine

    def is_redundant(self, sequence: SequenceId) -> bool:
        """Tell if others hold everything that this sequence holds."""
        return not any(self.unique(sequence, home) for home in self._homes.get(sequence, ()))

    def split(self, upper: Node, lower: Node) -> None:
        """Part the holders of a run that was cut in two; `lower` is the node that held everything."""
        above = (upper.indices,)
        for sequence, ranges in list(lower.held.items()):
            up, down = intersect(ranges, above), subtract(ranges, above)
            if up:
                upper.held[sequence] = up
                self._homes[sequence][upper] = None
            if down:
                lower.held[sequence] = down
            else:
                del lower.held[sequence]
                del self._homes[sequence][lower]

    def gather(self, target: SequenceId, lineage: Lineage, spans: Iterable[Span]) -> int:
        """Let `target` hold what anybody holds of these spans; returns how many cells it gained."""
        gained = 0
        calls: list[tuple[SequenceId, int, int]] = []
        for span in spans:
            for home, piece in lineage.pieces(span):
                wanted = subtract((piece.indices,), home.held.get(target, EMPTY))
                for holder, ranges in list(home.held.items()) if wanted else ():
                    found = intersect(wanted, ranges)
                    if not found or holder == target:
                        continue
                    wanted = subtract(wanted, found)
                    gained += size(found)
                    for start, end in found:
                        part = piece.cut(start, end)
                        if calls and calls[-1][0] == holder and calls[-1][2] == part.position:
                            calls[-1] = (holder, calls[-1][1], part.end)
                        else:
                            calls.append((holder, part.position, part.end))
                    self.hold(target, home, found)
                    if not wanted:
                        break
        for holder, start, end in calls:
            self._cells.share(holder, target, start, end)
        return gained

    def holds_all(self, sequence: SequenceId, lineage: Lineage, spans: Iterable[Span]) -> bool:
        """Tell if `sequence` holds every cell of these spans."""
        return all(
            not subtract((piece.indices,), home.held.get(sequence, EMPTY))
            for span in spans
            for home, piece in lineage.pieces(span)
        )

    def held_spans(self, sequence: SequenceId, lineage: Lineage, spans: Iterable[Span]) -> list[tuple[Node, Span]]:
        """Return the parts of these spans that `sequence` holds, with their homes, in the spans' order."""
        out = []
        for span in spans:
            for home, piece in lineage.pieces(span):
                for start, end in intersect((piece.indices,), home.held.get(sequence, EMPTY)):
                    out.append((home, piece.cut(start, end)))
        return out

    def check(self, homes: Iterable[Node]) -> None:
        """Assert that the accounts agree; for tests."""
        total = 0
        for home in homes:
            own = normal(s.indices for s in home.cells())
            for sequence, ranges in home.held.items():
                assert ranges
                assert subtract(ranges, own) == EMPTY, "held cells that the home doesn't have"
                assert home in self._homes[sequence]
            total += size(home.resident())
        assert total == self.used, (total, self.used)
        assert self.used <= self.total
