"""The KV of all sequences: lists of views over pages, saved runs that hold pages too, and bytes in and out for tiers.

Sharing, letting go, saving and loading change lists of views; K and V stay where they are. Only packing (when no page is
free), import and export touch them. Invariants 2 and 4: a sequence sees what it was given and nothing else.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from akashic_daemon.engine.torch_engine.pages import PagesLack, PageTable, Reservation, rows_at
from akashic_daemon.engine.torch_engine.pool import Pool
from akashic_daemon.engine.torch_engine.views import (
    BASE,
    LENGTH,
    NO_VIEWS,
    OFFSET,
    Longs,
    Views,
    cells_of,
    cut,
    merged,
    placed,
    position_range,
    tokens_in,
    views_of,
    without,
)
from akashic_daemon.errors import EngineError

Range = tuple[int, int]


class _Held:
    """Views that no sequence holds: a list that packing may rewrite."""

    __slots__ = ("views",)

    def __init__(self, views: Views) -> None:
        self.views = views


class PagedCells:
    """Saved cells: references to pages, held as long as this lives. No KV was copied."""

    def __init__(self, held: _Held) -> None:
        self.held = held

    @property
    def nbytes(self) -> int:
        """Bytes of the views; the KV itself stays in its pages."""
        return int(self.held.views.nbytes)


@dataclass(frozen=True, slots=True, eq=False)
class Growth:
    """Slots taken for a batch: the new tokens' cells, in order, and what each sequence sees with them."""

    sequences: tuple[int, ...]
    cells: Longs
    seen: list[Views]
    taken: Reservation


class PagedKv:
    """`sequences` lists over the pages of one pool."""

    def __init__(self, pool: Pool, table: PageTable, sequences: int) -> None:
        self.pool = pool
        self.table = table
        self._views: list[Views] = [NO_VIEWS] * sequences
        self._saved: dict[int, _Held] = {}
        self._dropped: deque[int] = deque()
        self.before_packing: Callable[[], None] = lambda: None
        """Called before cells move; may compute some, but neither take nor give back any."""
        self.packed_cells = 0
        """Cells that packing has moved so far."""

    def views(self, sequence: int) -> Views:
        """Return what a sequence sees; don't change it."""
        return self._views[sequence]

    def position_range(self, sequence: int) -> Range | None:
        """Return the lowest and highest position of a sequence, None when it holds nothing."""
        return position_range(self._views[sequence])

    def cells_held(self) -> int:
        """Return how many distinct cells anything sees."""
        self._forget_dropped()
        return int(self.table.live_slots(self._holders()).sum())

    # -- who sees what -----------------------------------------------------------------------------------------

    def share(self, source: int, target: int, start: int, end: int) -> None:
        """Let `target` see what `source` sees at these positions. Raises EngineError where it sees something else."""
        if source != target:
            self._add(target, cut(self._views[source], start, end))

    def release(self, sequence: int, start: int, end: int) -> None:
        """Let a sequence see these positions no more; -1: to the end."""
        old = self._views[sequence]
        if start <= 0 and end < 0:
            self._views[sequence] = NO_VIEWS
        else:
            last = position_range(old)
            self._views[sequence] = without(old, start, end if end >= 0 else (last[1] + 1 if last else 0))
        self.table.hold(self._views[sequence])
        self.table.let_go(old)

    def save(self, sequence: int, ranges: Sequence[Range]) -> PagedCells:
        """Hold the cells at these ranges for later. Raises EngineError when any isn't there."""
        return self.keep(self._at(sequence, ranges))

    def keep(self, views: Views) -> PagedCells:
        """Hold these views' pages."""
        held = _Held(views)
        self._forget_dropped()
        self.table.hold(views)
        self._saved[id(held)] = held
        cells = PagedCells(held)
        # A saved run may die on any thread; its pages are given back on this one.
        weakref.finalize(cells, self._dropped.append, id(held))
        return cells

    def load(self, saved: PagedCells, sequence: int, ranges: Sequence[Range]) -> None:
        """Let a sequence see saved cells at these positions."""
        views = saved.held.views
        wanted = sum(end - start for start, end in ranges)
        if tokens_in(views) != wanted:
            raise EngineError(f"loading {tokens_in(views)} saved cells at {wanted} positions")
        self._add(sequence, _ascending(placed(views, ranges)), only_new=True)

    def _at(self, sequence: int, ranges: Sequence[Range]) -> Views:
        parts = [cut(self._views[sequence], *wanted) for wanted in ranges]
        views = parts[0] if len(parts) == 1 else np.concatenate([NO_VIEWS, *parts])
        found, wanted = tokens_in(views), sum(end - start for start, end in ranges)
        if found != wanted:
            raise EngineError(f"saving {wanted} cells of sequence {sequence}: it holds {found} of them")
        return views

    def _add(self, sequence: int, added: Views, *, only_new: bool = False) -> None:
        old = self._views[sequence]
        new = merged(old, added)
        if new is None:
            new = None if only_new else merged(old, self._not_yet_seen(old, added))
        if new is None:
            raise EngineError(f"sequence {sequence} holds another cell at one of these positions")
        self._views[sequence] = new
        self.table.hold(new)
        self.table.let_go(old)

    def _not_yet_seen(self, old: Views, added: Views) -> Views:
        """Return `added` without what `old` sees at the same positions already."""
        cells, positions = cells_of(added, self.table.page_tokens)
        old_cells, old_positions = cells_of(old, self.table.page_tokens)
        places = np.minimum(np.searchsorted(old_positions, positions), len(old_positions) - 1)
        same = (old_positions[places] == positions) & (old_cells[places] == cells)
        return views_of(cells[~same], positions[~same], self.table.page_tokens)

    # -- new tokens --------------------------------------------------------------------------------------------

    def end(self, sequence: int) -> int:
        """Return the position after a sequence's last one, 0 when it holds nothing."""
        views = self._views[sequence]
        return _end_of(views) if len(views) else 0

    def grow(self, sequences: Sequence[int], counts: Sequence[int], starts: Sequence[int]) -> Growth:
        """Take slots for new tokens, packing pages when none is free. Raises EngineError when there is no room.

        `starts` are the first one's positions. Nothing is seen before `commit`.
        """
        growth = self._one_more(sequences, starts) if max(counts) == 1 else None
        if growth is not None:
            return growth
        taken = self.reserve(sequences, counts)
        added = [rows_at(rows, start) for rows, start in zip(taken.rows, starts, strict=True)]
        seen = [self.grown(sequence, views) for sequence, views in zip(sequences, added, strict=True)]
        cells = np.concatenate([cells_of(views, self.table.page_tokens)[0] for views in added])
        return Growth(tuple(sequences), cells, seen, taken)

    def _one_more(self, sequences: Sequence[int], starts: Sequence[int]) -> Growth | None:
        """Grow by one token each, where every sequence goes on in its last page: the shape of decoding, done quickly."""
        table, cells, fills = self.table, [], {}
        for sequence, start in zip(sequences, starts, strict=True):
            views = self._views[sequence]
            if not len(views):
                return None
            page, offset, length, base = views[-1].tolist()
            slot = offset + length
            if base + slot != start or slot == table.page_tokens or slot != table.fill[page] or page in fills:
                return None
            fills[page] = slot
            cells.append(page * table.page_tokens + slot)
        seen = []
        for sequence in sequences:
            views = self._views[sequence].copy()
            views[-1, LENGTH] += 1
            seen.append(views)
        for page, slot in fills.items():
            table.fill[page] = slot + 1
        return Growth(tuple(sequences), np.array(cells), seen, Reservation(fills=fills))

    def undo(self, growth: Growth) -> None:
        """Give the slots of a growth back that nothing has seen."""
        self.table.undo(growth.taken)

    def commit(self, growth: Growth) -> None:
        """Let the sequences see what was taken for them, now that it is written."""
        for sequence, new in zip(growth.sequences, growth.seen, strict=True):
            old = self._views[sequence]
            self._views[sequence] = new
            if len(new) > len(old):  # else its last view grew
                self.table.hold(new)
                self.table.let_go(old)

    def reserve(self, sequences: Sequence[int], counts: Sequence[int]) -> Reservation:
        """Take slots, packing pages when none is free. Raises EngineError when there is no room."""
        self._forget_dropped()
        try:
            return self.table.reserve(counts, self._tails(sequences))
        except PagesLack as lacking:
            self.before_packing()
            self._forget_dropped()
            self._pack(lacking.pages)
        try:
            return self.table.reserve(counts, self._tails(sequences), any_slot=True)
        except PagesLack as error:
            raise EngineError(
                f"no room for {sum(counts)} more KV cells: {self.cells_held()} of "
                f"{self.table.count * self.table.page_tokens} are held",
                hint="raise cache.kv_tokens",
            ) from error

    def grown(self, sequence: int, added: Views) -> Views:
        """Return what a sequence will see with the slots that were reserved for it."""
        new = merged(self._views[sequence], added)
        assert new is not None
        return new

    def _tails(self, sequences: Sequence[int]) -> list[Views | None]:
        return [self._views[s][-1] if len(self._views[s]) else None for s in sequences]

    def _pack(self, pages: int) -> None:
        packed = self.table.pack(self._holders(), pages)
        if packed is None:
            return
        packing, lists = packed
        self.pool.move(packing)
        self.table.moved(packing, lists)
        count = len(self._views)
        self._views = lists[:count]
        for held, views in zip(self._saved.values(), lists[count:], strict=True):
            held.views = views
        self.packed_cells += len(packing.source)

    def _holders(self) -> list[Views]:
        return [*self._views, *(held.views for held in self._saved.values())]

    def _forget_dropped(self) -> None:
        while self._dropped:
            self.table.let_go(self._saved.pop(self._dropped.popleft()).views)

    # -- bytes -------------------------------------------------------------------------------------------------

    def cells(self, sequence: int, start: int, end: int) -> Longs:
        """Return the cells of a run of positions. Raises EngineError when any isn't there."""
        return cells_of(self._at(sequence, [(start, end)]), self.table.page_tokens)[0]

    def new_runs(self, sequence: int, ranges: Sequence[Range]) -> tuple[Reservation, Longs, Views]:
        """Take slots for runs of positions whose KV comes from elsewhere; they are seen once `adopt` is called.

        Returns their cells in the ranges' order, and the views to adopt. Raises EngineError when there is no room, or a
        position is held or named twice.
        """
        positions = np.concatenate([np.arange(start, end) for start, end in ranges])
        if len(np.unique(positions)) < len(positions):
            raise EngineError(f"of {len(ranges)} runs for sequence {sequence}, two go to the same positions")
        for start, end in ranges:
            if len(cut(self._views[sequence], start, end)):
                raise EngineError(f"sequence {sequence} holds one of the positions {start} to {end - 1} already")
        taken = self.reserve([sequence], [len(positions)])
        cells = cells_of(rows_at(taken.rows[0], 0), self.table.page_tokens)[0]
        return taken, cells, _ascending(views_of(cells, positions, self.table.page_tokens))

    def adopt(self, sequence: int, added: Views) -> None:
        """Let a sequence see slots that `new_runs` took and that are written now."""
        self._add(sequence, added, only_new=True)

    def check(self) -> None:
        """Assert that the accounts agree; for tests."""
        self._forget_dropped()
        self.table.check(self._holders())
        for views in self._views:
            assert merged(views, NO_VIEWS) is not None


def _end_of(views: Views) -> int:
    last = views[-1]
    return int(last[BASE] + last[OFFSET] + last[LENGTH])


def _ascending(views: Views) -> Views:
    first = views[:, BASE] + views[:, OFFSET]
    return views if np.all(first[1:] > first[:-1]) else views[np.argsort(first, kind="stable")]
