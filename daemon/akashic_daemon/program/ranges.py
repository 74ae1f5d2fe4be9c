"""Sets of integers as sorted, disjoint, non-adjacent half-open ranges. Every function takes and returns that form."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

Range = tuple[int, int]
Ranges = tuple[Range, ...]
EMPTY: Ranges = ()


def normal(ranges: Iterable[Range]) -> Ranges:
    """Sort, join what touches or overlaps, and leave out what is empty."""
    out: list[Range] = []
    for start, end in sorted(ranges):
        if start >= end:
            continue
        if out and start <= out[-1][1]:
            if end > out[-1][1]:
                out[-1] = (out[-1][0], end)
        else:
            out.append((start, end))
    return tuple(out)


def union(a: Ranges, b: Ranges) -> Ranges:
    """Return what is in either."""
    if not a or not b:
        return a or b
    if a[-1][1] < b[0][0]:
        return a + b
    return normal((*a, *b))


def intersect(a: Ranges, b: Ranges) -> Ranges:
    """Return what is in both."""
    if not a or not b:
        return EMPTY
    out: list[Range] = []
    i, j = max(0, bisect_right(a, b[0]) - 1), max(0, bisect_right(b, a[0]) - 1)
    while i < len(a) and j < len(b):
        start, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if start < end:
            out.append((start, end))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return tuple(out)


def subtract(a: Ranges, b: Ranges) -> Ranges:
    """Return what is in `a` and not in `b`."""
    if not a or not b:
        return a
    out: list[Range] = []
    j = 0
    for start, end in a:
        at = start
        while j < len(b) and b[j][1] <= at:
            j += 1
        k = j
        while k < len(b) and b[k][0] < end:
            if b[k][0] > at:
                out.append((at, b[k][0]))
            at = max(at, b[k][1])
            k += 1
        if at < end:
            out.append((at, end))
    return tuple(out)


def size(a: Ranges) -> int:
    """Return how many integers are in `a`."""
    return sum(end - start for start, end in a)
