"""Lists of views: which slots of which pages a sequence sees, and at which positions. Pure arithmetic, no KV.

A view is a row (page, offset, length, base), int32: the token in slot j, offset <= j < offset + length, stands at position
base + j. K is turned by its slot alone, so giving KV another position changes `base` and nothing else. The rows of a list
ascend by position and don't overlap, unless said otherwise. Functions return new arrays.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Views = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]

PAGE, OFFSET, LENGTH, BASE = range(4)
NO_VIEWS: Views = np.empty((0, 4), np.int32)


def starts(views: Views) -> Views:
    """Return the position of each row's first token."""
    return views[:, BASE] + views[:, OFFSET]


def tokens_in(views: Views) -> int:
    """Return how many tokens the rows hold."""
    return int(views[:, LENGTH].sum())


def position_range(views: Views) -> tuple[int, int] | None:
    """Return the lowest and highest position, None of an empty list."""
    if not len(views):
        return None
    first, last = views[0], views[-1]
    return int(first[BASE] + first[OFFSET]), int(last[BASE] + last[OFFSET] + last[LENGTH]) - 1


def cut(views: Views, start: int, end: int) -> Views:
    """Return what stands at start <= position < end."""
    if start >= end:
        return NO_VIEWS
    held = position_range(views)
    if held is None or (start <= held[0] and held[1] < end):
        return views.copy()
    first = starts(views)
    last = first + views[:, LENGTH]
    low, high = int(np.searchsorted(last, start, "right")), int(np.searchsorted(first, end, "left"))
    part = views[low:high].copy()
    if len(part):
        skipped = max(0, start - int(first[low]))
        part[0, OFFSET] += skipped
        part[0, LENGTH] -= skipped
        part[-1, LENGTH] -= max(0, int(last[high - 1]) - end)
    return part


def without(views: Views, start: int, end: int) -> Views:
    """Return what doesn't stand at start <= position < end."""
    if start >= end:
        return views
    low, high = position_range(views) or (0, 0)
    return np.concatenate([cut(views, low, start), cut(views, end, high + 1)])


def merged(views: Views, added: Views) -> Views | None:
    """Return both lists as one; None where two rows would stand at one position."""
    both = np.concatenate([views, added]) if len(views) else added
    if len(views) and len(added) and starts(added[:1])[0] < starts(views[-1:])[0] + views[-1, LENGTH]:
        both = both[np.argsort(starts(both), kind="stable")]
    first = starts(both)
    if (first[:-1] + both[:-1, LENGTH] > first[1:]).any():
        return None
    return joined(both)


def joined(views: Views) -> Views:
    """Return the same tokens with rows that continue one another in one page made one."""
    if len(views) < 2:
        return views
    before, after = views[:-1], views[1:]
    continues = before[:, PAGE] == after[:, PAGE]
    if not continues.any():  # mostly so, and soon known
        return views
    continues &= before[:, BASE] == after[:, BASE]
    continues &= before[:, OFFSET] + before[:, LENGTH] == after[:, OFFSET]
    if not continues.any():
        return views
    heads = np.flatnonzero(np.concatenate([[True], ~continues]))
    out = views[heads]
    out[:, LENGTH] = np.add.reduceat(views[:, LENGTH], heads)
    return out


def placed(views: Views, ranges: Sequence[tuple[int, int]]) -> Views:
    """Return the tokens of `views`, in the rows' order, at the positions of `ranges`, in theirs.

    `views` may be in any order; both must count the same tokens. This is Repos: only bases change, rows are cut where a
    range ends.
    """
    if not len(views):
        return NO_VIEWS
    spans = np.array(ranges, np.int64).reshape(-1, 2)
    if len(spans) == 1:
        out = views.copy()
        # The first row's base, and from row to row by the tokens between two first slots.
        bases = out[:, BASE]
        bases[0] = spans[0, 0] - views[0, OFFSET]
        np.subtract(views[:-1, LENGTH] + views[:-1, OFFSET], views[1:, OFFSET], out=bases[1:])
        np.cumsum(bases, out=bases)
        return out
    row_ends = np.cumsum(views[:, LENGTH], dtype=np.int64)
    span_ends = np.cumsum(spans[:, 1] - spans[:, 0])
    assert row_ends[-1] == span_ends[-1]
    ends = np.union1d(row_ends, span_ends[span_ends > 0])
    begins = np.concatenate([[0], ends[:-1]])
    row, span = np.searchsorted(row_ends, begins, "right"), np.searchsorted(span_ends, begins, "right")
    out = np.empty((len(ends), 4), np.int32)
    out[:, PAGE] = views[row, PAGE]
    out[:, OFFSET] = views[row, OFFSET] + begins - (row_ends[row] - views[row, LENGTH])
    out[:, LENGTH] = ends - begins
    out[:, BASE] = spans[span, 1] - (span_ends[span] - begins) - out[:, OFFSET]
    return out


def cells_of(views: Views, page_tokens: int) -> tuple[Longs, Longs]:
    """Return each token's cell (page x page_tokens + slot) and position, in the rows' order."""
    lengths = views[:, LENGTH].astype(np.int64)
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    slots = np.repeat(views[:, OFFSET].astype(np.int64), lengths) + within
    pages, bases = (
        np.repeat(views[:, PAGE].astype(np.int64), lengths),
        np.repeat(views[:, BASE].astype(np.int64), lengths),
    )
    return pages * page_tokens + slots, bases + slots


def views_of(cells: Longs, positions: Longs, page_tokens: int) -> Views:
    """Return the fewest rows that hold these cells at these positions, in this order."""
    if not len(cells):
        return NO_VIEWS
    pages, slots = cells // page_tokens, cells % page_tokens
    bases = positions - slots
    breaks = (np.diff(cells) != 1) | (np.diff(pages) != 0) | (np.diff(bases) != 0)
    heads = np.flatnonzero(np.concatenate([[True], breaks]))
    lengths = np.diff(np.concatenate([heads, [len(cells)]]))
    return np.stack([pages[heads], slots[heads], lengths, bases[heads]], axis=1).astype(np.int32)
