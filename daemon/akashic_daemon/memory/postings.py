"""Which turns have a term, and how often: an inverted index in arrays, about five bytes an entry.

New entries stand in a short unsorted tail until they are put in their places, so that adding a turn costs little.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_LONGEST_TAIL = 1 << 16
_TAIL_SHARE = 64
_MOST_COUNT = 255

Rows = NDArray[np.int32]
Counts = NDArray[np.uint8]


class Postings:
    """Entries (term, row, count), found by term."""

    def __init__(self) -> None:
        self._terms = np.empty(0, np.uint32)
        self._ends = np.zeros(1, np.int64)
        self._rows: Rows = np.empty(0, np.int32)
        self._counts: Counts = np.empty(0, np.uint8)
        self._tail: list[tuple[NDArray[np.uint32], Rows, Counts]] = []
        self._tail_size = 0

    @property
    def size_bytes(self) -> int:
        """What the arrays take."""
        whole = self._terms.nbytes + self._ends.nbytes + self._rows.nbytes + self._counts.nbytes
        return whole + sum(t.nbytes + r.nbytes + c.nbytes for t, r, c in self._tail)

    def add(self, row_of: Rows, terms: NDArray[np.uint32]) -> None:
        """Add the terms of new rows, repeats kept; row_of says whose each is. No row may come twice."""
        keys = row_of.astype(np.uint64) << np.uint64(32) | terms
        found, counts = np.unique(keys, return_counts=True)
        rows = (found >> np.uint64(32)).astype(np.int32)
        entry = (found.astype(np.uint32), rows, np.minimum(counts, _MOST_COUNT).astype(np.uint8))
        self._tail.append(entry)
        self._tail_size += len(found)
        if self._tail_size > max(_LONGEST_TAIL, len(self._rows) // _TAIL_SHARE):
            self._merge()

    def of(self, term: int) -> tuple[Rows, Counts]:
        """Return the rows that have a term, ascending, each once, and how often."""
        if len(self._tail) > 1:
            self._tail = [self._joined()]
        at = int(np.searchsorted(self._terms, term))
        rows, counts = self._rows[:0], self._counts[:0]
        if at < len(self._terms) and self._terms[at] == term:
            place = slice(self._ends[at], self._ends[at + 1])
            rows, counts = self._rows[place], self._counts[place]
        for terms, late_rows, late_counts in self._tail:
            own = terms == np.uint32(term)
            rows, counts = np.concatenate([rows, late_rows[own]]), np.concatenate([counts, late_counts[own]])
        return rows, counts

    def counts_before(self, terms: Sequence[int], row: int) -> list[int]:
        """Return in how many rows before one each of some distinct terms is; hardly slower where there are many rows."""
        wanted = np.array(terms, np.uint32)
        found = np.zeros(len(wanted), np.int64)
        if not len(wanted):
            return []
        at = np.minimum(np.searchsorted(self._terms, wanted), max(len(self._terms) - 1, 0))
        for number, place in enumerate(at if len(self._terms) else ()):
            if self._terms[place] == wanted[number]:
                found[number] = np.searchsorted(self._rows[self._ends[place] : self._ends[place + 1]], row)
        order = np.argsort(wanted)
        for late, late_rows, _ in self._tail:
            own = late[late_rows < row]
            near = order[np.minimum(np.searchsorted(wanted, own, sorter=order), len(wanted) - 1)]
            found += np.bincount(near[wanted[near] == own], minlength=len(wanted))
        counts: list[int] = found.tolist()
        return counts

    def _joined(self) -> tuple[NDArray[np.uint32], Rows, Counts]:
        terms, rows, counts = zip(*self._tail, strict=True)
        return np.concatenate(terms), np.concatenate(rows), np.concatenate(counts)

    def _merge(self) -> None:
        terms, rows, counts = self._joined()
        order = np.argsort(terms, kind="stable")
        terms, rows, counts = terms[order], rows[order], counts[order]
        # New rows are greater than all before, so each goes to the end of its term's.
        places = self._ends[np.searchsorted(self._terms, terms, side="right")]
        self._rows = np.insert(self._rows, places, rows)
        self._counts = np.insert(self._counts, places, counts)
        late, late_sizes = np.unique(terms, return_counts=True)
        every = np.union1d(self._terms, late)
        sizes = np.zeros(len(every), np.int64)
        sizes[np.searchsorted(every, self._terms)] = np.diff(self._ends)
        sizes[np.searchsorted(every, late)] += late_sizes
        self._terms, self._ends = every, np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        self._tail, self._tail_size = [], 0


def distinct(rows: Rows) -> Rows:
    """Return each of the rows once, ascending."""
    ordered = np.sort(rows)
    is_first = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    once: Rows = ordered[is_first]
    return once
