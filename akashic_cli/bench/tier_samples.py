"""What a measurement of the tiers found: its samples, their summary, and the table of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from akashic_cli.bench.request import Measured
from akashic_cli.render.units import count, duration, size
from akashic_daemon.protocol.tiers import TierReport

COLUMNS = (
    "SCENARIO",
    "TTFT",
    "X COLD",
    "X RESIDENT",
    "COMPUTED",
    "NEW",
    "GPU",
    "RAM",
    "SSD",
    "OUT",
    "BACK",
    "BACK/S",
    "WRITTEN/KV",
)
_TIERS = ("gpu", "ram", "ssd")
_MIXED = ("agents", "peer")
"""Scenarios of other prompts than the rest: their times can't be compared with these."""
_BLOCK_TOKENS = 128
"""What a turn may compute beside its new tokens: a block."""


@dataclass(frozen=True, slots=True)
class Moved:
    """Bytes that moved on account of a request, between the tiers and onto the disk, and how long it waited for them."""

    out_bytes: int = 0
    ram_bytes: int = 0
    ssd_bytes: int = 0
    written_bytes: int = 0
    stall_s: float = 0.0

    @staticmethod
    def between(before: TierReport, after: TierReport) -> Moved:
        """Return what two reports of one daemon differ in."""
        old, new = before.moves, after.moves
        return Moved(
            new.demoted.bytes - old.demoted.bytes,
            new.promoted_from_ram.bytes - old.promoted_from_ram.bytes,
            new.promoted_from_ssd.bytes - old.promoted_from_ssd.bytes,
            after.wear.written_bytes - before.wear.written_bytes,
            after.stall_s - before.stall_s,
        )


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured request. kv_tokens: whose KV was computed on its account, the answer's too.

    tries: what each try of an aborted prompt computed, the one that wasn't cancelled last.
    """

    scenario: str
    session: str
    turn: int
    new_tokens: int
    kv_tokens: int
    measured: Measured
    tries: tuple[int, ...] = ()


@dataclass(slots=True)
class Result:
    """What was measured up to now; `stopped` says why that isn't all."""

    model: str = ""
    kv_bytes_per_token: int = 0
    resident_tokens: int = 0
    samples: list[Sample] = field(default_factory=list)
    moved: dict[str, list[Moved]] = field(default_factory=dict)
    unique_tokens: int = 0
    problems: list[str] = field(default_factory=list)
    stopped: str | None = None


def report(result: Result, setup: dict[str, Any], wall_s: float) -> dict[str, Any]:
    """Return everything as JSON: the setup, a summary of each scenario, and each request."""
    names = list(dict.fromkeys(sample.scenario for sample in result.samples))
    times = {name: _first_token_s(result, name) for name in names}
    return {
        **setup,
        "model": result.model,
        "kv_bytes_per_token": result.kv_bytes_per_token,
        "resident_tokens": result.resident_tokens,
        "wall_s": round(wall_s, 3),
        "stopped": result.stopped,
        "written_over_computed": _written_over_computed(result),
        "problems": list(dict.fromkeys(result.problems)),
        "summary": [_summary(result, name, times) for name in names],
        "runs": [_row(sample) for sample in result.samples],
    }


def _first_token_s(result: Result, name: str) -> float:
    """Return the median; of agents that take turns their first ones are left out, which nobody can have cached."""
    samples = [s for s in result.samples if s.scenario == name]
    later = [s for s in samples if s.turn > 0] if name in _MIXED else samples
    return median(s.measured.first_token_s for s in later or samples)


def _summary(result: Result, name: str, times: dict[str, float]) -> dict[str, Any]:
    samples = [s for s in result.samples if s.scenario == name]
    moved = result.moved.get(name)
    computed = sum(s.measured.computed_tokens for s in samples)
    new = sum(s.new_tokens for s in samples)
    unique = result.unique_tokens if name in _MIXED and result.unique_tokens else new
    kv_bytes = sum(s.kv_tokens for s in samples) * result.kv_bytes_per_token
    written_bytes = sum(m.written_bytes for m in moved or ())
    return {
        "scenario": name,
        "requests": len(samples),
        "first_token_s": round(times[name], 4),
        "over_cold": None if name in _MIXED else _ratio(times[name], times.get("cold")),
        "over_resident": None if name in _MIXED else _ratio(times[name], times.get("resident")),
        "prompt_tokens": sum(s.measured.prompt_tokens for s in samples),
        "computed_tokens": computed,
        "new_tokens": unique,
        "most_over_new": max(s.measured.computed_tokens - s.new_tokens for s in samples),
        "by_turn": _by_turn(samples) if name in _MIXED else None,
        "turns_over_new": sum(s.measured.computed_tokens > s.new_tokens + _BLOCK_TOKENS for s in samples if s.turn),
        "tries": [list(s.tries) for s in samples] if name == "aborted" else None,
        "tokens_by_tier": None if name == "peer" else {tier: sum(_tokens(s, tier) for s in samples) for tier in _TIERS},
        "moved": None if moved is None else {key: sum(asdict(m)[key] for m in moved) for key in asdict(Moved())},
        "back_bytes_per_s": _back_rate(moved or []),
        "kv_computed_bytes": kv_bytes,
        "written_over_computed": None if moved is None else _ratio(written_bytes, kv_bytes),
    }


def _by_turn(samples: list[Sample]) -> list[dict[str, int]]:
    """Return what each round of agents that take turns computed, beside the tokens that were new in it."""
    turns = sorted({s.turn for s in samples})
    rounds = [[s for s in samples if s.turn == turn] for turn in turns]
    return [
        {
            "turn": turn,
            "computed_tokens": sum(s.measured.computed_tokens for s in here),
            "new_tokens": sum(s.new_tokens for s in here),
        }
        for turn, here in zip(turns, rounds, strict=True)
    ]


def _written_over_computed(result: Result) -> float | None:
    """Return what was written to disk for each byte of KV computed: of all, as a write may wait for a later request."""
    kv_tokens = sum(s.kv_tokens for s in result.samples if s.scenario in result.moved)
    written_bytes = sum(m.written_bytes for moved in result.moved.values() for m in moved)
    return _ratio(written_bytes, kv_tokens * result.kv_bytes_per_token)


def _back_rate(moved: list[Moved]) -> int | None:
    """Return how fast KV came back into the engine where requests waited for it: the median of them."""
    rates = [(m.ram_bytes + m.ssd_bytes) / m.stall_s for m in moved if m.stall_s > 0 and m.ram_bytes + m.ssd_bytes]
    return round(median(rates)) if rates else None


def _ratio(value: float, base: float | None) -> float | None:
    return round(value / base, 4) if base else None


def _tokens(sample: Sample, tier: str) -> int:
    by_tier = (sample.measured.akashic or {}).get("reused_by_tier") or {}
    return int(by_tier.get(tier, 0))


def _row(sample: Sample) -> dict[str, Any]:
    m = sample.measured
    return {
        "scenario": sample.scenario,
        "run": sample.session,
        "turn": sample.turn,
        "prompt_tokens": m.prompt_tokens,
        "cached_tokens": m.cached_tokens,
        "computed_tokens": m.computed_tokens,
        "new_tokens": sample.new_tokens,
        "completion_tokens": m.completion_tokens,
        "tries": list(sample.tries),
        "ttft_s": round(m.first_token_s, 4),
        "total_s": round(m.total_s, 4),
        "akashic": m.akashic,
    }


def table_rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return a row for each scenario."""
    rows = []
    for row in result["summary"]:
        tiers, moved = row["tokens_by_tier"], row["moved"]
        back = None if moved is None else moved["ram_bytes"] + moved["ssd_bytes"]
        rows.append(
            (
                row["scenario"],
                duration(row["first_token_s"]),
                _times(row["over_cold"]),
                _times(row["over_resident"]),
                count(row["computed_tokens"]),
                count(row["new_tokens"]),
                *(count(None if tiers is None else tiers[tier]) for tier in _TIERS),
                "-" if moved is None else size(moved["out_bytes"]),
                "-" if back is None else size(back),
                "-" if row["back_bytes_per_s"] is None else size(row["back_bytes_per_s"]),
                _times(row["written_over_computed"]),
            )
        )
    return rows


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.3f}"


def remarks(result: dict[str, Any]) -> list[str]:
    """Return what doesn't fit into the table, a sentence each: tries of aborted prompts, and agents' rounds."""
    said = []
    for row in result["summary"]:
        said += [
            f"aborted: the tries at one prompt computed {', '.join(map(count, tries))}: {count(sum(tries))} tokens"
            for tries in row["tries"] or ()
        ]
        if row["by_turn"]:
            rounds = (f"{count(r['computed_tokens'])} of {count(r['new_tokens'])}" for r in row["by_turn"])
            said.append(
                f"{row['scenario']}: computed of new tokens by round: {', '.join(rounds)}; "
                f"{row['turns_over_new']} later turns computed a block more than was new"
            )
    return said
