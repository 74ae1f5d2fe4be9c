"""The view of `akashic cache tiers`, and the lines on tiers in other views."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from akashic_cli.render.bars import cells_of
from akashic_cli.render.output import out, print_fields, print_table
from akashic_cli.render.units import count, duration, size

if TYPE_CHECKING:
    from akashic_daemon.protocol.tiers import Moved, Tier, TierReport

_BAR_CELLS = 24
_FEWEST_BAR_CELLS = 6
_PLACES = {"gpu": "engine", "ram": "RAM", "ssd": "SSD"}


def print_tiers(report: TierReport) -> None:
    """Print a line and a bar a tier, then what moved between them; without a table where the terminal is too narrow."""
    columns = ("TIER", "USED", "BUDGET", "FULL", "WASTE", "BLOCKS", "HIT TOKENS", "HIT RATE")
    beside = [
        max(map(len, cells)) + 2 for cells in zip(columns, *(_row(tier, 0) for tier in report.tiers), strict=True)
    ]
    bar_cells = min(_BAR_CELLS, out().width - sum(beside) + beside[3] - 2)
    if bar_cells < _FEWEST_BAR_CELLS:
        print_fields([(tier.tier, ", ".join(_cells(tier))) for tier in report.tiers])
    else:
        print_table(columns, [_row(tier, bar_cells) for tier in report.tiers], right=(1, 2, 4, 5, 6, 7))
    print()
    print_fields(fields(report))


def _cells(tier: Tier) -> list[str]:
    hits = f"{count(tier.hit_tokens)} hit tokens, {_share(tier.hit_rate)} of prompts"
    if not tier.is_on:
        return [_off(tier), hits]
    held = f"{count(tier.tokens)} tokens" if tier.blocks is None else _blocks(tier.blocks)
    used = f"{size(tier.used_bytes)} of {size(tier.budget_bytes)} ({_share(_fullness(tier))})"
    return [used, f"{_share(tier.waste)} waste", held, hits]


def _row(tier: Tier, bar_cells: int) -> tuple[str, ...]:
    if not tier.is_on:
        return (tier.tier, _off(tier), "-", "-", "-", "-", count(tier.hit_tokens), _share(tier.hit_rate))
    held = count(tier.blocks) if tier.blocks is not None else f"{count(tier.tokens)} tokens"
    return (
        tier.tier,
        size(tier.used_bytes),
        size(tier.budget_bytes),
        bar(tier, bar_cells) if sys.stdout.isatty() else _share(_fullness(tier)),
        _share(tier.waste),
        held,
        count(tier.hit_tokens),
        _share(tier.hit_rate),
    )


def bar(tier: Tier, width_cells: int) -> str:
    """Return how full a tier is: payload, what is wasted, and what is free."""
    waste_bytes = tier.used_bytes - tier.payload_bytes
    free_bytes = max(0, tier.budget_bytes - tier.used_bytes)
    payload, waste, _ = cells_of((tier.payload_bytes, waste_bytes, free_bytes), tier.budget_bytes, width_cells)
    full = "█" * payload + "▒" * waste
    return full[:width_cells].ljust(width_cells, "·")


def fields(report: TierReport) -> list[tuple[str, str]]:
    """Return what moved between the tiers, as names and values."""
    moves, gone, wear = report.moves, report.evictions, report.wear
    return [
        ("copied out", f"{_moved(moves.demoted)}, {count(moves.waiting_writes)} wait for the disk"),
        ("brought back", f"{_moved(moves.promoted_from_ram)} from RAM, {_moved(moves.promoted_from_ssd)} from SSD"),
        ("stall", f"{duration(report.stall_s)} in {count(report.reloads)} reloads"),
        (
            "prefetched",
            f"{size(moves.prefetched_bytes)}: {size(moves.prefetch_used_bytes)} used, "
            f"{size(moves.prefetch_wasted_bytes)} wasted",
        ),
        ("hints", f"{count(report.hints)}: {count(report.hints_met)} came, {count(report.hints_expired)} did not"),
        (
            "evicted",
            f"engine {count(gone.gpu_tokens)} tokens ({count(gone.gpu_parked_tokens)} parked), "
            f"RAM {_moved(gone.ram)}, SSD {_counts(gone.ssd)}",
        ),
        ("last copies lost", _counts(gone.lost)),
        (
            "disk, ever",
            f"{size(wear.written_bytes)} written, {size(wear.rewritten_bytes)} rewritten, {size(wear.read_back_bytes)} "
            f"read back; {size(wear.never_read_bytes)} of what is there was never read",
        ),
        ("disk, today", f"{size(wear.day_written_bytes)} of {size(wear.day_budget_bytes)} written"),
        ("not written", _counts(wear.refused)),
        *(("problem", problem) for problem in report.problems),
    ]


def summary(report: TierReport) -> list[tuple[str, str]]:
    """Return lines on the tiers below the engine and the buffers between them, for `daemon status` and `stats`."""
    lines = [(f"{tier.tier} tier", _line(tier)) for tier in report.tiers if tier.tier != "gpu"]
    return [*lines, ("staging", f"{size(report.staging_bytes)} between engine, RAM and disk")]


def one_line(report: TierReport) -> str:
    """Return how full the tiers below the engine are, and what they gave back, for a view that must be short."""
    parts = []
    for tier in report.tiers:
        if tier.tier != "gpu":
            hits = f" ({_share(tier.hit_rate)} of prompts)" if tier.hit_tokens else ""
            used = f"{size(tier.used_bytes)} of {size(tier.budget_bytes)}" if tier.is_on else "off"
            parts.append(f"{tier.tier} {used}{hits}")
    return ", ".join(parts) or "none"


def _line(tier: Tier) -> str:
    if not tier.is_on:
        return "off"
    used = f"{size(tier.used_bytes)} of {size(tier.budget_bytes)}, {_blocks(tier.blocks or 0)}"
    return f"{used}, {_share(tier.hit_rate)} of prompt tokens came from {_PLACES[tier.tier]}"


def _fullness(tier: Tier) -> float | None:
    return tier.used_bytes / tier.budget_bytes if tier.budget_bytes else None


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _moved(moved: Moved) -> str:
    return f"{size(moved.bytes)} in {_blocks(moved.blocks)}"


def _blocks(number: int) -> str:
    return f"{count(number)} block{'s' * (number != 1)}"


def _off(tier: Tier) -> str:
    """Say why a tier has nothing: the engine's can't be switched off, it is away while no model is loaded."""
    return "no model" if tier.tier == "gpu" else "off"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{why.replace('_', ' ')} {count(n)}" for why, n in sorted(counts.items()) if n) or "none"
