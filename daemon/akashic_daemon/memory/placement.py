"""Which records of a namespace should lie in the same block: those that questions find together.

Recursive bisection of a hypergraph (PAPERS: Social Hash Partitioner). Nodes are records; an edge holds what one search
found: the neighbours of a record by our own retriever, or a logged result. Each cut minimises the expected number of sides
that an edge touches when each of its records is wanted with a fixed probability; it begins from the order in time, and
swaps pairs as long as that gains. Nothing here reads or moves a byte: a layout is a list of blocks of record numbers, and
what a search answers never depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

KNN_WEIGHT, LOGGED_WEIGHT = 1.0, 5.0
LEAST_GAIN = 0.05
"""A new layout is taken when the fan-out of results that it wasn't made from falls at least so far."""
HELD_OUT_EVERY = 4
_WANTED = 0.3
_MOST_ROUNDS = 20
_GROWTH = 2
_FILL = 0.95

Layout = list[list[int]]
Records = NDArray[np.int64]
_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Edges:
    """A hypergraph: `records[i]` belongs to edge `edges[i]`, which weighs `weights[edges[i]]`."""

    records: Records
    edges: Records
    weights: _Floats

    def where(self, pins: NDArray[np.bool_]) -> Edges:
        """Return the edges with only some of their records."""
        return Edges(self.records[pins], self.edges[pins], self.weights)


def edges_of(found: Sequence[tuple[Sequence[int], float]]) -> Edges:
    """Return the hypergraph of (records found together, weight); those of fewer than two say nothing."""
    kept = [(list(dict.fromkeys(records)), weight) for records, weight in found]
    kept = [(records, weight) for records, weight in kept if len(records) > 1]
    flat = [record for records, _ in kept for record in records]
    edges = np.repeat(np.arange(len(kept)), [len(records) for records, _ in kept])
    return Edges(np.array(flat, np.int64), edges, np.array([weight for _, weight in kept], np.float64))


def bisected(sizes_bytes: Sequence[int], edges: Edges, block_bytes: int) -> Layout:
    """Return blocks of the records 0..n-1, given in the order in time, which each block keeps.

    A block holds at most `block_bytes` unless one record alone is larger. Equal input gives an equal layout.
    """
    sizes = np.asarray(sizes_bytes, np.int64)
    layout: Layout = []
    # Blocks are planned not quite full: halves that are only about equal would spill over into blocks of their own.
    count = -(-int(sizes.sum()) // max(1, int(_FILL * block_bytes)))
    pending = [(np.arange(len(sizes)), edges, count)]
    while pending:
        part, inside, count = pending.pop()
        count = max(count, -(-int(sizes[part].sum()) // block_bytes))
        if count < 2 or len(part) < 2:
            if len(part):
                layout.append(part.tolist())
            continue
        local = np.searchsorted(part, inside.records)
        is_right = _cut(sizes[part], local, inside, (count // 2) / count)
        on_right = is_right[local]
        pending.append((part[is_right], inside.where(on_right), count - count // 2))
        pending.append((part[~is_right], inside.where(~on_right), count // 2))
    return layout


def _cut(sizes: Records, local: Records, edges: Edges, share: float) -> NDArray[np.bool_]:
    """Return which records go right; the left gets about `share` of the bytes. `local`: which one each pin is of."""
    ends = np.cumsum(sizes)
    is_right: NDArray[np.bool_] = ends > share * ends[-1]
    if is_right.all():
        is_right[0] = False
    if not is_right.any():
        is_right[-1] = True
    used, edge = np.unique(edges.edges, return_inverse=True)
    weights = edges.weights[used]
    best = _expected_sides(is_right, local, edge, weights)
    right_bytes = round((1 - share) * int(ends[-1]))
    for _ in range(_MOST_ROUNDS):
        gains = _gains(is_right, local, edge, weights)
        swapped = _swapped(is_right, gains, sizes, right_bytes)
        cost = _expected_sides(swapped, local, edge, weights)
        if cost >= best:
            break
        best, is_right = cost, swapped
    return is_right


def _missing(counts: NDArray[np.int64]) -> _Floats:
    """Return the probability that none of so many records is wanted."""
    return np.power(1.0 - _WANTED, counts)


def _counts(is_right: NDArray[np.bool_], local: Records, edge: Records, size: int) -> tuple[Records, Records]:
    both = np.bincount(edge, minlength=size)
    right = np.bincount(edge[is_right[local]], minlength=size)
    return both - right, right


def _expected_sides(is_right: NDArray[np.bool_], local: Records, edge: Records, weights: _Floats) -> float:
    left, right = _counts(is_right, local, edge, len(weights))
    return float(((2.0 - _missing(left) - _missing(right)) * weights).sum())


def _gains(is_right: NDArray[np.bool_], local: Records, edge: Records, weights: _Floats) -> _Floats:
    """Return by how much the expected sides fall when a record alone changes side."""
    left, right = _counts(is_right, local, edge, len(weights))
    on_right = is_right[local]
    here = np.where(on_right, right[edge], left[edge])
    there = np.where(on_right, left[edge], right[edge])
    each = weights[edge] * _WANTED * (_missing(here - 1) - _missing(there))
    return np.bincount(local, each, minlength=len(is_right)).astype(np.float64, copy=False)


def _swapped(is_right: NDArray[np.bool_], gains: _Floats, sizes: Records, right_bytes: int) -> NDArray[np.bool_]:
    """Return the sides after swapping the pairs that gain most, the right side at about its bytes."""
    order = np.argsort(-gains, kind="stable")
    rights, lefts = order[is_right[order]], order[~is_right[order]]
    count = min(len(rights), len(lefts))
    rights, lefts = rights[:count], lefts[:count]
    gaining = int(np.searchsorted(-(gains[rights] + gains[lefts]), 0.0))
    out = is_right.copy()
    out[rights[:gaining]] = False
    out[lefts[:gaining]] = True
    # Pairs of unlike sizes shift bytes: what loses least by it goes back to the lighter side.
    drift_bytes = int(sizes[out].sum()) - right_bytes
    heavy = order[(out[order] == is_right[order]) & (out[order] == (drift_bytes > 0))]
    back = int(np.searchsorted(np.cumsum(sizes[heavy]), abs(drift_bytes), side="right"))
    out[heavy[:back]] ^= True
    return out


def fan_out(layout: Layout, found: Sequence[Sequence[int]]) -> float:
    """Return how many blocks a result touches on average; records in no block count as one each. 0 without results."""
    block_of = {record: number for number, block in enumerate(layout) for record in block}
    touched = [len({block_of.get(record, -1 - record) for record in records}) for records in found if records]
    return sum(touched) / len(touched) if touched else 0.0


@dataclass(frozen=True, slots=True)
class Proposal:
    """A layout that was weighed against the one that stands, by results it wasn't made from."""

    layout: Layout
    fan_out_before: float
    fan_out_after: float

    @property
    def is_accepted(self) -> bool:
        """Whether it is worth its writes."""
        return self.fan_out_before > 0 and self.fan_out_after <= (1 - LEAST_GAIN) * self.fan_out_before


def propose(
    current: Layout,
    sizes_bytes: Sequence[int],
    neighbours: Sequence[Sequence[int]],
    logged: Sequence[Sequence[int]],
    block_bytes: int,
) -> Proposal:
    """Return a better layout, judged by every fourth logged result, or by every fourth list of neighbours without a log.

    neighbours: the records nearest to each record by our own retriever, without itself; ten are enough.
    """
    lists = [[record, *near] for record, near in enumerate(neighbours)]
    judges = logged if len(logged) >= HELD_OUT_EVERY else lists
    held_out = judges[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
    seen = [(found, LOGGED_WEIGHT) for found in _without(logged, judges is logged)]
    seen += [(found, KNN_WEIGHT) for found in _without(lists, judges is lists)]
    layout = bisected(sizes_bytes, edges_of(seen), block_bytes)
    return Proposal(layout, fan_out(current, held_out), fan_out(layout, held_out))


def _without(found: Sequence[Sequence[int]], is_judge: bool) -> list[Sequence[int]]:
    return [f for number, f in enumerate(found) if not (is_judge and number % HELD_OUT_EVERY == HELD_OUT_EVERY - 1)]


def is_due(stored_bytes: int, regrouped_bytes: int) -> bool:
    """Whether a namespace has grown enough since it was last regrouped, at `regrouped_bytes`.

    It has to have doubled: so all regroupings together write less than twice what was stored, and with the first writing
    of each record less than three times.
    """
    return stored_bytes > 0 and stored_bytes >= _GROWTH * regrouped_bytes
