"""The counters of `akashic stats` as fields, for where no board is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from akashic_cli.render import tiers
from akashic_cli.render.units import count, duration, rate, size

if TYPE_CHECKING:
    from akashic_daemon.protocol.native import Stats


def fields(stats: Stats) -> list[tuple[str, str]]:
    """Return the counters as names and values."""
    engine = stats.engine
    share = f"{stats.reused_tokens_total / stats.prompt_tokens_total:.1%}" if stats.prompt_tokens_total else "-"
    misses = ", ".join(f"{cause} {number}" for cause, number in sorted(stats.miss_causes.items()))
    remote = f" ({count(stats.remote_requests_total)} on other servers)" if stats.remote_requests_total else ""
    return [
        ("up", duration(stats.uptime_s)),
        ("model", f"{engine.model or '-'} ({engine.state}), {engine.threads} threads"),
        (
            "requests",
            f"{count(stats.requests_total)}{remote}, {stats.requests_failed_total} failed, "
            f"{stats.requests_cancelled_total} cancelled, {stats.queued} waiting",
        ),
        ("prompt tokens", f"{count(stats.prompt_tokens_total)}, {share} reused"),
        ("computed", f"{count(stats.computed_tokens_total)} tokens"),
        (
            "saved",
            f"Drop {count(stats.dropped_tokens_total)} tokens not read, Repos {count(stats.reposed_tokens_total)} moved",
        ),
        ("generated", f"{count(stats.generated_tokens_total)} tokens"),
        ("evicted", f"{count(stats.evicted_tokens_total)} tokens, {stats.preempted_total} requests preempted"),
        ("speed", f"prefill {rate(stats.prefill_tokens_per_s)}, decode {rate(stats.decode_tokens_per_s)}"),
        ("first token", f"p50 {duration(stats.first_token_p50_s)}, p95 {duration(stats.first_token_p95_s)}"),
        ("inter-token", f"p50 {duration(stats.inter_token_p50_s)}, p95 {duration(stats.inter_token_p95_s)}"),
        ("kv cells", f"{count(engine.kv_cells_used)} of {count(engine.kv_cells_total)}"),
        ("sequences", f"{engine.sequences_used} of {engine.sequences_total}"),
        (
            "memory",
            f"{size(stats.resident_bytes)} resident, {size(engine.kv_bytes)} KV, {size(engine.model_bytes)} model",
        ),
        ("tiers", tiers.one_line(stats.tiers)),
        ("reloads", f"{count(stats.tiers.reloads)}, {duration(stats.tiers.stall_s)} of stall"),
        ("misses", misses or "none"),
        *(("problem", problem) for problem in stats.tiers.problems),
    ]
