"""Closing the holes that dropped cells leave in the engine's cache.

llama.cpp attends over all cells up to the highest one in use and masks the holes, so a cache that was full once stays
slow. Compaction saves what is held, empties the cache and loads it again from the bottom. It pays when many more cells
lie idle below the top than are in use: `Holes` keeps the account, with costs that are measured as it goes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from akashic_daemon.cache.holdings import Cells, Holdings
from akashic_daemon.cache.node import Node
from akashic_daemon.program.ranges import EMPTY, Range, intersect, normal, subtract, union
from akashic_daemon.types import SequenceId

_FEWEST_HOLES = 1024
_TOKENS_AHEAD = 32
"""So many tokens are expected to profit before the cache looks different again."""


@dataclass(slots=True)
class Holes:
    """Tells when compaction pays. `peak` is the most cells in use since the last one: the cache reaches up to there.

    move_s: seconds to save and load one cell; begins as measured with SmolLM2-135M on two cores and follows what is seen.
    hole_s: seconds that one hole costs each step (`Capabilities.hole_s`).
    """

    peak: int = 0
    move_s: float = 5e-5
    hole_s: float = 0.0

    def see(self, used: int) -> None:
        """Take note of the cells in use."""
        self.peak = max(self.peak, used)

    def pays(self, used: int) -> bool:
        """Tell if closing the holes saves more than it costs."""
        holes = self.peak - used
        return holes >= _FEWEST_HOLES and holes * self.hole_s * _TOKENS_AHEAD > used * self.move_s

    def closed(self, used: int, seconds: float) -> None:
        """Learn from a compaction of `used` cells."""
        if used:
            self.move_s = 0.5 * self.move_s + 0.5 * seconds / used
        self.peak = used


def compact(holdings: Holdings, nodes: Iterable[Node], cells: Cells) -> int:
    """Save, release and load again every held cell; who holds what stays the same. Returns how many cells moved.

    No insertion may be under way. Raises what the engine raises; the caller must then forget the whole cache.
    """
    groups = _by_holders(nodes)
    saved = [(holders, ranges, cells.save(holders[0], ranges)) for holders, ranges in groups.items()]
    for sequence in holdings.holders():
        cells.release(sequence)
    for holders, ranges, blob in saved:
        cells.load(blob, holders[0], ranges)
        for other in holders[1:]:
            for start, end in ranges:
                cells.share(holders[0], other, start, end)
    return holdings.used


def _by_holders(nodes: Iterable[Node]) -> dict[tuple[SequenceId, ...], tuple[Range, ...]]:
    """Return the position ranges of all cells that the same sequences hold; within one sequence positions are unique."""
    out: dict[tuple[SequenceId, ...], list[Range]] = {}
    for node in nodes:
        parts: dict[tuple[SequenceId, ...], tuple[Range, ...]] = {}
        for sequence, held in node.held.items():
            rest = held
            for holders, ranges in list(parts.items()):
                both = intersect(ranges, rest)
                if both:
                    parts[holders] = subtract(ranges, both)
                    more = (*holders, sequence)
                    parts[more] = union(parts.get(more, EMPTY), both)
                    rest = subtract(rest, both)
            if rest:
                parts[(sequence,)] = union(parts.get((sequence,), EMPTY), rest)
        for holders, ranges in parts.items():
            if ranges:
                out.setdefault(tuple(sorted(holders)), []).extend(node.positions(ranges))
    return {holders: normal(ranges) for holders, ranges in out.items()}
