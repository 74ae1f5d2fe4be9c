"""A level's figures in the one form of bench runs, and what dropping is against summarising beside its goal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from akashic_cli.bench.agents.counting import equal_bounds
from akashic_cli.bench.agents.figures import GOALS, SUSTAINED_GOAL
from akashic_cli.bench.agents.sweep import Plan
from akashic_cli.bench.agents.workload import Episode
from akashic_cli.bench.record import Measure

_RATIOS = {
    "cost": ("cost", "lower"),
    "output": ("output", "higher"),
    "latency_p95": ("latency p95, shorter by", "higher"),
}


def measures(result: dict[str, Any], plan: Plan, episodes: Sequence[Episode]) -> list[Measure]:
    """Return the figures of each level, then the ratios."""
    return [*_levels(result), *_ratios(result), *_bounds(plan, episodes)]


def _levels(result: dict[str, Any]) -> Iterator[Measure]:
    for row in result["levels"]:
        if row["kind"] == "concurrency":
            where = f"{row['policy']}, {row['level']} agents"
            yield Measure(f"cost, {where}", row["cost"], "computed tokens' worth", "lower")
            yield Measure(f"output, {where}", row["output_tokens_per_s"], "tok/s", "higher")
            if row["latency_p95_s"] is not None:
                yield Measure(f"latency p95, {where}", row["latency_p95_s"], "s", "lower")
    for policy, rate in result["sustainable_per_min"].items():
        yield Measure(f"sustained, {policy}", rate or 0.0, "episodes a minute", "higher")


def _ratios(result: dict[str, Any]) -> Iterator[Measure]:
    """Yield what dropping is against each summarising policy; of other policies the figures themselves say enough."""
    for row in _of_drops(result["over_summarise"]):
        for key, (name, better) in _RATIOS.items():
            if row[key] is not None:
                where = f"{row['policy']} against {row['base']}, {row['level']} agents"
                yield Measure(f"{name}, {where}", row[key], "x", better, goal=GOALS[key])
    for row in _of_drops(result["sustainable_over"]):
        if row["times"] is not None:
            name = f"sustained, {row['policy']} against {row['base']}"
            yield Measure(name, row["times"], "x", "higher", goal=SUSTAINED_GOAL)


def _of_drops(rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return (row for row in rows if row["policy"].startswith("drop"))


def _bounds(plan: Plan, episodes: Sequence[Episode]) -> Iterator[Measure]:
    if not any(name.startswith("drop") for name in plan.policies):
        return
    for row in equal_bounds(episodes, plan.setting, plan.price, [plan.setting.keep]):
        if row["ratio_each"] is not None:
            name = f"cost, drop against summarise at equal bounds, counted, {row['episodes_each']} of {row['episodes']} runs"
            yield Measure(name, row["ratio_each"], "x", "lower", goal=GOALS["cost"])
