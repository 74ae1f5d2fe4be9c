"""`/metrics`: the counters in Prometheus' text format, written by ourselves: it is a dozen lines.

Names end as vLLM's do where they mean the same (`vllm:num_requests_running` is `akashic_num_requests_running`), so that
dashboards need another prefix only. Totals count since the daemon's start, those of the disk since its store was made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from akashic_daemon.api.app_state import service_of
from akashic_daemon.protocol.native import Stats
from akashic_daemon.schedule.histograms import Distributions, Histogram

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ENDS = ("stop", "length", "tool_calls", "abort")
Samples = Iterable[tuple[Mapping[str, str], float]]


def routes() -> list[Route]:
    """Return the route."""
    return [Route("/metrics", metrics, methods=["GET"])]


async def metrics(request: Request) -> Response:
    """Answer with all metrics."""
    service = service_of(request)
    text = metrics_text(await service.stats(), service.distributions)
    return Response(text, headers={"content-type": _CONTENT_TYPE})


def metrics_text(stats: Stats, spread: Distributions | None = None) -> str:
    """Return a snapshot in the text format."""
    page = _Page()
    _requests(page, stats)
    if spread is not None:
        _spread(page, spread)
    _tokens(page, stats)
    _tiers(page, stats)
    _disk(page, stats)
    return page.text


class _Page:
    def __init__(self) -> None:
        self.text = ""

    def gauge(self, name: str, about: str, samples: Samples | float) -> None:
        self._add(name, "gauge", about, samples)

    def counter(self, name: str, about: str, samples: Samples | float) -> None:
        self._add(f"{name}_total", "counter", about, samples)

    def histogram(self, name: str, about: str, found: Histogram) -> None:
        name = f"akashic_{name}"
        self.text += f"# HELP {name} {about}\n# TYPE {name} histogram\n"
        total = 0
        for bound, total in found.cumulative():
            self.text += f'{name}_bucket{{le="{bound}"}} {total}\n'
        self.text += f"{name}_sum {found.sum}\n{name}_count {total}\n"

    def _add(self, name: str, kind: str, about: str, samples: Samples | float) -> None:
        name = f"akashic_{name}"
        self.text += f"# HELP {name} {about}\n# TYPE {name} {kind}\n"
        for labels, value in [({}, samples)] if isinstance(samples, int | float) else samples:
            shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
            self.text += f"{name}{{{shown}}} {value}\n" if shown else f"{name} {value}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _by(label: str, counts: Mapping[str, float]) -> Samples:
    return [({label: key}, value) for key, value in sorted(counts.items())]


def _requests(page: _Page, stats: Stats) -> None:
    page.gauge("num_requests_running", "Requests that are computed.", len(stats.activity) - stats.queued)
    page.gauge("num_requests_waiting", "Requests that wait in the queue.", stats.queued)
    limit = stats.engine.running_limit
    page.gauge("running_limit", "Requests that may run together now; fewer under memory pressure.", limit)
    page.counter("requests", "Requests that were queued.", stats.requests_total)
    page.counter("remote_requests", "Those of them that other servers computed.", stats.remote_requests_total)
    page.counter("requests_failed", "Requests that ended with an error.", stats.requests_failed_total)
    page.counter("requests_cancelled", "Requests whose client went away.", stats.requests_cancelled_total)
    page.counter("num_preemptions", "Requests that went back to the queue for lack of room.", stats.preempted_total)


def _spread(page: _Page, spread: Distributions) -> None:
    page.histogram("time_to_first_token_seconds", "From a request to its first token.", spread.first_token)
    page.histogram("inter_token_latency_seconds", "Between two tokens of an answer.", spread.inter_token)
    page.histogram("time_per_output_token_seconds", "The same, by the name that vLLM had before.", spread.inter_token)
    about = "Mean time of an answer's tokens but the first."
    page.histogram("request_time_per_output_token_seconds", about, spread.request_token)
    page.histogram("e2e_request_latency_seconds", "From a request to its end.", spread.request)
    page.histogram("request_queue_time_seconds", "In the queue.", spread.queued)
    page.histogram("request_prefill_time_seconds", "From the queue to the end of the prompt.", spread.prefill)
    page.histogram("request_decode_time_seconds", "From the first token to the last.", spread.decode)
    page.histogram("request_inference_time_seconds", "From the queue to the last token.", spread.inference)
    page.histogram("request_prompt_tokens", "Tokens of a request's prompt.", spread.prompt_tokens)
    page.histogram("request_generation_tokens", "Tokens of a request's answer.", spread.generated_tokens)
    ends = dict.fromkeys(_ENDS, 0) | {
        "abort" if reason == "cancelled" else reason: count for reason, count in spread.ends.items()
    }
    page.counter("request_success", "Requests that didn't fail, by how they ended.", _by("finished_reason", ends))


def _tokens(page: _Page, stats: Stats) -> None:
    hits: dict[str, float] = {tier.tier: 0 for tier in stats.tiers.tiers}
    hits |= stats.reused_by_tier
    page.counter("prompt_tokens", "Tokens of prompts.", stats.prompt_tokens_total)
    page.counter("prompt_tokens_cached", "Tokens of prompts that were reused.", sum(hits.values()))
    page.counter("generation_tokens", "Tokens that were generated.", stats.generated_tokens_total)
    page.counter("computed_tokens", "Tokens of prompts that were computed.", stats.computed_tokens_total)
    page.counter("dropped_tokens", "Tokens of histories that prompts didn't read: dropped.", stats.dropped_tokens_total)
    page.counter("reposed_tokens", "Tokens whose KV was moved to another position.", stats.reposed_tokens_total)
    page.counter("prefix_cache_queries", "Tokens of prompts that were looked for.", stats.prompt_tokens_total)
    page.counter("prefix_cache_hits", "Tokens of prompts that were reused, by where they were.", _by("tier", hits))
    page.counter("prompt_misses", "Prompts that could not be reused to their end.", _by("cause", stats.miss_causes))


def _tiers(page: _Page, stats: Stats) -> None:
    engine, report = stats.engine, stats.tiers
    usage = engine.kv_cells_used / engine.kv_cells_total if engine.kv_cells_total else 0.0
    page.gauge("kv_cache_usage_perc", "Share of the engine's KV cells that are used, 0 to 1.", usage)
    page.gauge("staging_bytes", "Buffers between engine, RAM and disk.", report.staging_bytes)
    page.gauge("resident_bytes", "Memory of the daemon.", stats.resident_bytes)
    kinds = {
        "budget": "Most that a tier may take.",
        "used": "What a tier takes, with what slots and dead records waste.",
        "payload": "KV in a tier.",
    }
    for kind, about in kinds.items():
        sizes: dict[str, float] = {tier.tier: getattr(tier, f"{kind}_bytes") for tier in report.tiers}
        page.gauge(f"tier_{kind}_bytes", about, _by("tier", sizes))
    blocks: dict[str, float] = {tier.tier: tier.blocks for tier in report.tiers if tier.blocks is not None}
    page.gauge("tier_blocks", "Blocks in each tier.", _by("tier", blocks))
    page.gauge("tier_problems", "Tiers that don't work; `akashic cache tiers` says why.", len(report.problems))
    moves = {
        "out_of_engine": report.moves.demoted,
        "from_ram": report.moves.promoted_from_ram,
        "from_ssd": report.moves.promoted_from_ssd,
    }
    page.counter("moved_bytes", "KV that was moved.", _by("way", {way: moved.bytes for way, moved in moves.items()}))
    page.counter(
        "moved_blocks", "Blocks that were moved.", _by("way", {way: moved.blocks for way, moved in moves.items()})
    )
    fates = {"used": report.moves.prefetch_used_bytes, "wasted": report.moves.prefetch_wasted_bytes}
    page.counter("prefetched_bytes", "KV that was read into RAM ahead.", report.moves.prefetched_bytes)
    page.counter("prefetch_fate_bytes", "What became of it.", _by("fate", fates))
    page.counter("reloads", "Requests for which KV was brought back.", report.reloads)
    page.counter("reload_seconds", "Time that requests waited for it.", report.stall_s)
    page.counter("session_hints", "Requests that were announced.", report.hints)
    came = {"came": report.hints_met, "expired": report.hints_expired}
    page.counter("session_hint_fates", "What became of them.", _by("fate", came))
    gone = report.evictions
    page.counter("evicted_tokens", "Tokens that left the engine's cache.", gone.gpu_tokens)
    page.counter("ram_evicted_bytes", "KV that left the RAM tier for lack of room.", gone.ram.bytes)
    page.counter("ssd_evicted_blocks", "Blocks that left the SSD tier.", _by("reason", gone.ssd))
    page.counter("lost_blocks", "Blocks whose last copy went.", _by("reason", gone.lost))


def _disk(page: _Page, stats: Stats) -> None:
    wear = stats.tiers.wear
    page.counter("disk_written_bytes", "KV that was written to disk.", wear.written_bytes)
    page.counter("disk_rewritten_bytes", "KV that compaction wrote again.", wear.rewritten_bytes)
    page.counter("disk_read_back_bytes", "KV that was read from disk.", wear.read_back_bytes)
    page.gauge("disk_never_read_bytes", "KV on disk that was never read.", wear.never_read_bytes)
    page.gauge("disk_written_today_bytes", "KV that was written to disk today.", wear.day_written_bytes)
    page.gauge("disk_daily_budget_bytes", "Most that is written in a day.", wear.day_budget_bytes)
    page.counter("disk_refused_blocks", "Blocks that weren't written.", _by("reason", wear.refused))
