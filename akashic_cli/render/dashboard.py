"""The view of `akashic stats`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from akashic_cli.render import tiers
from akashic_cli.render.output import out, printable
from akashic_cli.render.units import count, duration, rate, size

if TYPE_CHECKING:
    from rich.console import Group

    from akashic_daemon.protocol.native import Stats


REDRAWS_PER_S = 4


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


def view(stats: Stats) -> Group:
    """Return the whole view: counters above, requests below."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    counters = Table.grid(padding=(0, 2))
    for name, value in fields(stats):
        counters.add_row(Text(name, style="bold"), Text(printable(value)))
    requests = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("REQUEST", "SESSION", "STATE", "PROMPT", "REUSED", "READ", "WRITTEN", "AGE"):
        requests.add_column(column)
    for item in stats.activity:
        requests.add_row(
            Text(item.request),
            Text(printable(item.session or "-")),
            item.state,
            count(item.prompt_tokens),
            count(item.reused_tokens),
            count(item.prefilled_tokens),
            count(item.generated_tokens),
            duration(item.age_s),
        )
    return Group(counters, requests if stats.activity else Text("no request runs", style="dim"))


def watch(snapshots: Iterator[Stats]) -> None:
    """Redraw the view for each snapshot until the stream ends, and leave the last one on the screen."""
    from rich.live import Live

    console = out()
    last: Stats | None = None
    try:
        # On a screen of its own, drawn between snapshots too: a window that is resized then leaves no torn lines.
        with Live(console=console, screen=not console.is_dumb_terminal, refresh_per_second=REDRAWS_PER_S) as live:
            for snapshot in snapshots:
                last = snapshot
                live.update(view(snapshot), refresh=True)
    finally:
        if last is not None and not console.is_dumb_terminal:
            console.print(view(last))
