"""Pages of KV slots: who holds them, where new tokens go, and packing when free pages run out. Moves no KV itself.

A page is written from its first slot on and never rewritten while anything sees it. `refs` counts the views of a page;
at 0 it is free, whatever its slots hold. Slots that nothing sees any more are lost until the page is free or packed, so
the table keeps a few pages more than its cells need, and says by `pack` which cells to move where to get whole pages back.
Invariants 2 and 4: what a view sees never changes, but for packing, which moves K and V together with every view of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from akashic_daemon.engine.torch_engine.views import (
    BASE,
    LENGTH,
    OFFSET,
    PAGE,
    Longs,
    Views,
    cells_of,
    tokens_in,
    views_of,
)

Ints = npt.NDArray[np.int32]
_FEW = 128


class PagesLack(Exception):
    """Free pages are too few; `pages` more would do."""

    def __init__(self, pages: int) -> None:
        super().__init__(pages)
        self.pages = pages


@dataclass(slots=True)
class Reservation:
    """Slots taken for one batch: per item rows (page, offset, length). Undone by `PageTable.undo`."""

    rows: list[list[tuple[int, int, int]]] = field(default_factory=list)
    fills: dict[int, int] = field(default_factory=dict)
    """Each touched page's fill before."""
    fresh: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Packing:
    """Cells to move: the K and V of `source[i]` go to `target[i]`, all reads before all writes."""

    source: Longs
    target: Longs


class PageTable:
    """`count` pages of `page_tokens` slots each."""

    def __init__(self, count: int, page_tokens: int) -> None:
        self.count = count
        self.page_tokens = page_tokens
        self.refs: Longs = np.zeros(count, np.int64)
        self.fill: Ints = np.zeros(count, np.int32)
        self._free = list(range(count - 1, -1, -1))

    def hold(self, views: Views) -> None:
        """Count these views."""
        self._count(views[:, PAGE], 1)

    def let_go(self, views: Views) -> None:
        """Count these views no more; pages that nobody sees are free."""
        if not len(views):
            return
        pages = views[:, PAGE]
        self._count(pages, -1)
        unseen = self.refs.take(pages)
        if not unseen.all():
            gone = np.unique(pages[unseen == 0])
            self.fill[gone] = 0
            self._free.extend(gone[::-1].tolist())

    def _count(self, pages: Ints, change: int) -> None:
        if not len(pages):
            return
        if len(pages) < _FEW:
            np.add.at(self.refs, pages, change)
        else:  # twice as fast for long lists
            counts = np.bincount(pages, minlength=self.count)
            self.refs += counts if change > 0 else -counts

    # -- new tokens --------------------------------------------------------------------------------------------

    def reserve(self, counts: Sequence[int], tails: Sequence[Ints | None], *, any_slot: bool = False) -> Reservation:
        """Take slots for so many tokens an item; `tails` are the last views, whose pages are continued where possible.

        any_slot: use the free ends of other pages too, once no page is free. Raises PagesLack; then nothing was taken.
        """
        taken = Reservation()
        lacking = 0
        for count, tail in zip(counts, tails, strict=True):
            rows: list[tuple[int, int, int]] = []
            left = count - self._continue(taken, rows, count, tail)
            while left and self._free:
                page = self._free.pop()
                taken.fresh.append(page)
                left -= self._take(taken, rows, page, left)
            if left and any_slot:
                left -= self._take_ends(taken, rows, left)
            lacking += -(-left // self.page_tokens)
            taken.rows.append(rows)
        if lacking:
            self.undo(taken)
            raise PagesLack(lacking)
        return taken

    def undo(self, taken: Reservation) -> None:
        """Give the slots back, which nothing may have seen yet."""
        for page, fill in taken.fills.items():
            self.fill[page] = fill
        self._free.extend(reversed(taken.fresh))

    def _continue(self, taken: Reservation, rows: list[tuple[int, int, int]], count: int, tail: Ints | None) -> int:
        if tail is None:
            return 0
        page, end = int(tail[PAGE]), int(tail[OFFSET] + tail[LENGTH])
        if end != self.fill[page]:
            if self.refs[page] != 1 or page in taken.fills:
                return 0
            taken.fills[page] = int(self.fill[page])
            self.fill[page] = end  # the slots after it were let go by all
        return self._take(taken, rows, page, count)

    def _take(self, taken: Reservation, rows: list[tuple[int, int, int]], page: int, count: int) -> int:
        start = int(self.fill[page])
        taken.fills.setdefault(page, start)
        length = min(count, self.page_tokens - start)
        if length:
            self.fill[page] = start + length
            rows.append((page, start, length))
        return length

    def _take_ends(self, taken: Reservation, rows: list[tuple[int, int, int]], count: int) -> int:
        got = 0
        for page in np.argsort(self.fill, kind="stable").tolist():
            if got == count or self.fill[page] == self.page_tokens:
                break
            got += self._take(taken, rows, page, count - got)
        return got

    # -- packing -----------------------------------------------------------------------------------------------

    def pack(self, holders: Sequence[Views], pages: int) -> tuple[Packing, list[Views]] | None:
        """Move the cells of badly used pages together, so that `pages` pages (or as many as can be) become free.

        holders: every list of views there is. Returns what to move and the holders' new lists, in their order; None when
        nothing is to be gained. Nothing changes before `moved` is called, once the cells have moved.
        """
        chosen = self._badly_used(holders, pages)
        if chosen is None:
            return None
        expanded = [cells_of(views, self.page_tokens) for views in holders]
        every = np.concatenate([cells for cells, _ in expanded])
        every = every[np.isin(every // self.page_tokens, chosen)]
        distinct, first_seen = np.unique(every, return_index=True)
        source = distinct[np.argsort(first_seen, kind="stable")]
        kept = np.sort(chosen)[: -(-len(source) // self.page_tokens)].astype(np.int64)
        order = np.arange(len(source))
        target = kept[order // self.page_tokens] * self.page_tokens + order % self.page_tokens
        places = np.arange(self.count * self.page_tokens)
        places[source] = target
        lists = [views_of(places[cells], positions, self.page_tokens) for cells, positions in expanded]
        return Packing(source, target), lists

    def _badly_used(self, holders: Iterable[Views], pages: int) -> Longs | None:
        """Return the emptiest pages that, packed, give `pages` whole pages back, or as many as there are to be had."""
        live = self.live_slots(holders).sum(axis=1)
        partial = np.flatnonzero((self.refs > 0) & (live < self.page_tokens))
        partial = partial[np.argsort(live[partial], kind="stable")]
        needed = -(-np.cumsum(live[partial]) // self.page_tokens)
        gains = np.arange(1, len(partial) + 1) - needed
        if not len(gains) or gains.max() <= 0:
            return None
        enough = np.flatnonzero(gains >= min(pages, gains.max()))
        return partial[: int(enough[0]) + 1]

    def live_slots(self, holders: Iterable[Views]) -> npt.NDArray[np.bool_]:
        """Return which slots anything sees: [pages, page_tokens]."""
        steps = np.zeros((self.count, self.page_tokens + 1), np.int32)
        for views in holders:
            np.add.at(steps, (views[:, PAGE], views[:, OFFSET]), 1)
            np.add.at(steps, (views[:, PAGE], views[:, OFFSET] + views[:, LENGTH]), -1)
        return np.cumsum(steps, axis=1)[:, :-1] > 0

    def moved(self, packing: Packing, lists: Sequence[Views]) -> None:
        """Count anew after a packing was carried out: `lists` are all holders' now."""
        chosen, kept = (np.unique(cells // self.page_tokens) for cells in (packing.source, packing.target))
        moved = len(packing.source)
        self.refs[:] = 0
        for views in lists:
            self.hold(views)
        gone = np.setdiff1d(chosen, kept)
        self.fill[gone] = 0
        self.fill[kept] = self.page_tokens
        if moved % self.page_tokens:
            self.fill[kept[-1]] = moved % self.page_tokens
        self._free.extend(gone[::-1].tolist())

    def check(self, holders: Sequence[Views]) -> None:
        """Assert that the accounts agree with every list of views there is; for tests."""
        refs = np.zeros_like(self.refs)
        for views in holders:
            np.add.at(refs, views[:, PAGE], 1)
            assert np.all(views[:, LENGTH] > 0)
            assert np.all(views[:, OFFSET] + views[:, LENGTH] <= self.fill[views[:, PAGE]])
        assert np.array_equal(refs, self.refs)
        assert sorted(self._free) == np.flatnonzero(refs == 0).tolist()
        assert not self.fill[refs == 0].any()


def rows_at(rows: Sequence[tuple[int, int, int]], start: int) -> Views:
    """Return reserved rows as views of consecutive positions from `start` on."""
    out = np.empty((len(rows), 4), np.int32)
    out[:, :BASE] = np.array(rows, np.int32).reshape(-1, 3)
    before = np.cumsum(out[:, LENGTH]) - out[:, LENGTH]
    out[:, BASE] = start + before - out[:, OFFSET]
    assert tokens_in(out) == sum(length for _, _, length in rows)
    return out
