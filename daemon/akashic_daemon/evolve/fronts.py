"""Fronts of two objectives that are both to be small, and intervals by resampling runs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Pair = tuple[float, float]
_RESAMPLES = 2000


def dominates(one: Pair, other: Pair) -> bool:
    """Tell if one is no worse in both and better in one."""
    return one[0] <= other[0] and one[1] <= other[1] and one != other


def front(points: Sequence[Pair]) -> list[int]:
    """Return the places of the points that none dominates, the first of equal ones only, by the first objective."""
    order = sorted(range(len(points)), key=lambda i: (points[i], i))
    out: list[int] = []
    lowest = float("inf")
    for i in order:
        if points[i][1] < lowest:
            lowest = points[i][1]
            out.append(i)
    return out


def ranked(points: Sequence[Pair]) -> list[int]:
    """Return all places: front after front, each thinned from its ends inwards so that what is kept spreads."""
    left = list(range(len(points)))
    out: list[int] = []
    while left:
        chosen = [left[i] for i in front([points[j] for j in left])]
        out += _spread([points[i] for i in chosen], chosen)
        taken = set(chosen)
        left = [i for i in left if i not in taken]
    return out


def _spread(points: Sequence[Pair], places: Sequence[int]) -> list[int]:
    """Order a front by the gap that each point would leave, ends first."""
    last = len(points) - 1
    span = (points[last][0] - points[0][0] or 1.0, points[0][1] - points[last][1] or 1.0)

    def gap(i: int) -> float:
        if i in (0, last):
            return float("inf")
        return (points[i + 1][0] - points[i - 1][0]) / span[0] + (points[i - 1][1] - points[i + 1][1]) / span[1]

    return [places[i] for i in sorted(range(len(points)), key=lambda i: (-gap(i), i))]


def area(points: Sequence[Pair], corner: Pair) -> float:
    """Return the area that a front dominates below a corner: larger is better."""
    total, ceiling = 0.0, corner[1]
    for i in front(points):
        cost, lost = points[i]
        if cost < corner[0] and lost < ceiling:
            total += (corner[0] - cost) * (ceiling - lost)
            ceiling = lost
    return total


@dataclass(frozen=True, slots=True)
class Interval:
    """A value over all runs, and the middle 95 % of it over resampled runs."""

    value: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        """Return it as plain values."""
        return {"value": self.value, "low": self.low, "high": self.high}


def bootstrap(count: int, value: Callable[[Sequence[int]], float], seed: int) -> Interval:
    """Resample `count` runs; `value` is asked about lists of their numbers. Paired, when it compares two things of each run."""
    chance = random.Random(seed)
    found = sorted(value([chance.randrange(count) for _ in range(count)]) for _ in range(_RESAMPLES))
    cut = round(0.025 * _RESAMPLES)
    return Interval(value(range(count)), found[cut], found[-cut - 1])
