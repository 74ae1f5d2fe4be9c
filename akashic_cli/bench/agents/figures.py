"""Figures of a level: what a user waits for, what was computed, what it costs, and whether it keeps to an objective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from akashic_cli.bench.agents.load import Load
from akashic_cli.bench.agents.strategies import is_summarising
from akashic_cli.bench.request import Measured
from akashic_cli.bench.summary import percentile
from akashic_cli.render.units import count, duration
from akashic_daemon.errors import UsageError

COLUMNS = (
    "POLICY", "AGENTS", "PER MIN", "OUTPUT", "FIRST P50", "FIRST P95", "TPOT P95", "LATENCY P95", "COMPUTED", "CACHED", "MOST", "COST", "BROKEN",
)  # fmt: skip
GOALS = {"cost": 0.72, "output": 1.18, "latency_p95": 1.5}
"""What dropping is to reach against summarising at the same number of agents: cost at most, the others at least."""
SUSTAINED_GOAL = 1.9


@dataclass(frozen=True, slots=True)
class Objective:
    """What 95 % of requests must keep to: first token since it was wanted, and time between tokens."""

    first_token_s: float = 2.0
    token_s: float = 0.2

    @staticmethod
    def parse(text: str) -> Objective:
        """Read `FIRST,BETWEEN` in seconds. Raises UsageError."""
        try:
            first, between = (float(part) for part in text.split(","))
        except ValueError:
            first = between = -1.0
        if not (0 < first < 1e6 and 0 < between < 1e6):
            raise UsageError(
                f"reading --slo {text!r}: two times in seconds are needed", hint="first token, between tokens: 2,0.2"
            )
        return Objective(first, between)


@dataclass(frozen=True, slots=True)
class Price:
    """Of a token that is computed, read from the cache, written."""

    computed: float
    cached: float
    output: float

    def of(self, computed_tokens: int, cached_tokens: int, output_tokens: int) -> float:
        """Return what so many tokens of each sort cost."""
        return computed_tokens * self.computed + cached_tokens * self.cached + output_tokens * self.output


def figures(load: Load, price: Price, objective: Objective) -> dict[str, Any]:
    """Return the figures of a level; control requests count in all but the times that users see by themselves.

    What a policy dropped stays in the history, but isn't read any more, so it isn't charged as cached.
    """
    asked = [sent for sent in load.sent if not sent.is_control]
    measured = [sent.measured for sent in load.sent]
    computed = sum(m.computed_tokens for m in measured)
    dropped = sum(_dropped(m) for m in measured)
    cached = sum(max(0, m.cached_tokens - _dropped(m)) for m in measured)
    output = sum(m.completion_tokens for m in measured)
    useful = sum(sent.measured.completion_tokens for sent in asked)
    firsts = [sent.waited_s for sent in asked]
    betweens = [
        (s.measured.total_s - s.measured.first_token_s) / (s.measured.completion_tokens - 1)
        for s in asked
        if s.measured.completion_tokens > 1
    ]
    latencies = [s.waited_s + s.measured.total_s - s.measured.first_token_s for s in asked]
    found = {
        "episodes": load.episodes,
        "broken": load.broken,
        "requests": len(asked),
        "summaries": len(load.sent) - len(asked),
        "wall_s": load.wall_s,
        "episodes_per_min": 60 * (load.episodes - len(load.broken)) / load.wall_s if load.wall_s else 0.0,
        "output_tokens_per_s": useful / load.wall_s if load.wall_s else 0.0,
        "first_token_p50_s": median(firsts) if firsts else None,
        "first_token_p95_s": percentile(firsts, 0.95) if firsts else None,
        "token_p50_s": median(betweens) if betweens else None,
        "token_p95_s": percentile(betweens, 0.95) if betweens else None,
        "latency_p50_s": median(latencies) if latencies else None,
        "latency_p95_s": percentile(latencies, 0.95) if latencies else None,
        "computed_tokens": computed,
        "cached_tokens": cached,
        "dropped_tokens": dropped,
        "output_tokens": output,
        "cost": price.of(computed, cached, output),
        "peak_tokens": max((m.prompt_tokens - _dropped(m) + m.completion_tokens for m in measured), default=0),
    }
    return {**found, "keeps_objective": _keeps(found, objective)}


def _dropped(measured: Measured) -> int:
    return int((measured.akashic or {}).get("dropped_tokens") or 0)


def _keeps(found: dict[str, Any], objective: Objective) -> bool:
    """Tell if a level keeps to the objective; an episode that broke off doesn't."""
    if found["broken"] or found["first_token_p95_s"] is None:
        return False
    between = found["token_p95_s"]
    return found["first_token_p95_s"] <= objective.first_token_s and (between is None or between <= objective.token_s)


def against(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return, for each level of a policy, its cost, throughput and latency over those of each summarising one beside it.

    Levels at which an episode broke off are left out: half a run is cheap.
    """
    whole = [row for row in rows if row["kind"] == "concurrency" and not row["broken"]]
    return [
        {
            "policy": row["policy"],
            "base": base["policy"],
            "level": row["level"],
            "cost": _ratio(row["cost"], base["cost"]),
            "output": _ratio(row["output_tokens_per_s"], base["output_tokens_per_s"]),
            "latency_p95": _ratio(base["latency_p95_s"], row["latency_p95_s"]),
        }
        for row in whole
        for base in whole
        if is_summarising(base["policy"]) and not is_summarising(row["policy"]) and base["level"] == row["level"]
    ]


def sustained_over(rates: Mapping[str, float | None]) -> list[dict[str, Any]]:
    """Return how many times the sustained rate of each summarising policy the others sustain; None where it sustained none."""
    return [
        {"policy": name, "base": base, "times": _ratio(rate, rates[base])}
        for name, rate in rates.items()
        for base in rates
        if is_summarising(base) and not is_summarising(name)
    ]


def _ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None


def table_rows(result: dict[str, Any], of: str = "") -> list[tuple[str, ...]]:
    """Return a row for each level; `of` stands before the policy's name."""
    return [
        (
            of + row["policy"],
            str(row["level"]) if row["kind"] == "concurrency" else "-",
            f"{row['episodes_per_min']:.2f}" if row["kind"] == "concurrency" else f"{row['level']:.2f} asked",
            f"{row['output_tokens_per_s']:.1f} tok/s",
            *(duration(row[key]) for key in ("first_token_p50_s", "first_token_p95_s", "token_p95_s", "latency_p95_s")),
            count(row["computed_tokens"]),
            count(row["cached_tokens"]),
            count(row["peak_tokens"]),
            count(round(row["cost"])),
            count(len(row["broken"])),
        )
        for row in result["levels"]
    ]
