"""Two runs side by side: how much each figure changed, and whether that is more than noise.

Samples of the same number are taken as pairs (the same request of both runs), others by themselves. The change is that of the
medians, its interval the middle 95 % over resampled samples; one that holds zero is noise. A single figure has no interval.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import median
from typing import Any

from akashic_cli.bench.record import Measure, Record

COLUMNS = ("SUITE", "TARGET", "FIGURE", "BEFORE", "AFTER", "CHANGE", "LOW", "HIGH", "VERDICT")
_RESAMPLES = 1000
_LEAST_SAMPLES = 4
_SEED = 1


def compare(before: Record, after: Record) -> dict[str, Any]:
    """Return the changes of all figures that both runs have, what only one has, and where the machines differ."""
    rows, alone = [], []
    for suite in after.suites:
        other = before.find(suite.suite, suite.target)
        known = {measure.name: measure for measure in other.measures} if other is not None else {}
        for measure in suite.measures:
            if measure.name in known:
                rows.append({"suite": suite.suite, "target": suite.target, **_row(known[measure.name], measure)})
            else:
                alone.append(f"{suite.suite}: {measure.name}")
    differing = [
        key for key in after.machine if key != "load_at_start" and after.machine[key] != before.machine.get(key)
    ]
    return {
        "before": before.id,
        "after": after.id,
        "same_size": before.size == after.size,
        "machine_differs_in": differing,
        "inputs_differ": before.inputs != after.inputs,
        "only_after": alone,
        "rows": rows,
    }


def _row(before: Measure, after: Measure) -> dict[str, Any]:
    change = _change(before.value, after.value)
    interval = _interval(before.samples, after.samples)
    return {
        "figure": after.name,
        "unit": after.unit,
        "before": before.value,
        "after": after.value,
        "change": change,
        "low": None if interval is None else interval[0],
        "high": None if interval is None else interval[1],
        "verdict": _verdict(after.better, change, interval),
    }


def _change(before: float, after: float) -> float | None:
    return after / before - 1 if before else (0.0 if not after else None)


def _interval(before: Sequence[float], after: Sequence[float]) -> tuple[float, float] | None:
    if min(len(before), len(after)) < _LEAST_SAMPLES:
        return None
    chance = random.Random(_SEED)
    found = []
    for _ in range(_RESAMPLES):
        at = [chance.randrange(len(before)) for _ in before]
        also = at if len(before) == len(after) else [chance.randrange(len(after)) for _ in after]
        change = _change(median(before[i] for i in at), median(after[i] for i in also))
        if change is not None:
            found.append(change)
    if not found:
        return None
    found.sort()
    cut = round(0.025 * len(found))
    return found[cut], found[-cut - 1]


def _verdict(better: str, change: float | None, interval: tuple[float, float] | None) -> str:
    if change is None or not change:
        return "same" if change is not None else "from zero"
    if interval is None:
        return "changed, noise unknown"
    if interval[0] <= 0 <= interval[1]:
        return "within noise"
    if better == "neither":
        return "changed"
    return "better" if (change < 0) == (better == "lower") else "worse"


def table_rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return a row for each figure that both runs have."""
    return [
        (
            row["suite"],
            row["target"],
            f"{row['figure']}, {row['unit']}",
            f"{row['before']:.6g}",
            f"{row['after']:.6g}",
            _percent(row["change"]),
            _percent(row["low"]),
            _percent(row["high"]),
            row["verdict"],
        )
        for row in result["rows"]
    ]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:+.1f} %"
