"""Histograms of `/metrics`: the names and buckets of vLLM's dashboards, and counts that agree."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from akashic_daemon.api.metrics import metrics_text
from akashic_daemon.engine.fake import FakeEngine
from akashic_daemon.protocol.native import Timing
from akashic_daemon.schedule.histograms import Distributions, Histogram
from fake_service import answer, ask, running_service, user

NAMES = (
    "time_to_first_token_seconds", "inter_token_latency_seconds", "time_per_output_token_seconds",
    "request_time_per_output_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds",
    "request_prefill_time_seconds", "request_decode_time_seconds", "request_inference_time_seconds",
    "request_prompt_tokens", "request_generation_tokens",
)  # fmt: skip
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
COUNTERS = (
    "prompt_tokens_total", "prompt_tokens_cached_total", "generation_tokens_total", "prefix_cache_queries_total",
    "prefix_cache_hits_total", "num_preemptions_total", "request_success_total",
)  # fmt: skip
REASONS = ("stop", "length", "abort")


@given(st.lists(st.floats(0, 100)))
def test_each_bucket_counts_what_does_not_exceed_its_bound(values: list[float]) -> None:
    histogram = Histogram((0.5, 1.0, 10.0))
    for value in values:
        histogram.observe(value)
    expected = [(str(bound), sum(v <= bound for v in values)) for bound in (0.5, 1.0, 10.0)]
    assert list(histogram.cumulative()) == [*expected, ("+Inf", len(values))]
    assert histogram.sum == pytest.approx(sum(values))


def test_a_request_whose_client_left_counts_as_ended_but_its_times_do_not() -> None:
    spread = Distributions()
    spread.finished("cancelled", Timing(total_s=3.0), 10, 5)
    spread.finished("stop", Timing(total_s=3.0, decode_s=2.0), 10, 5)
    assert spread.ends == {"cancelled": 1, "stop": 1}
    assert (spread.request.sum, spread.request_token.sum, spread.prompt_tokens.sum) == (3.0, 0.5, 10)


def test_a_dashboard_of_vllm_finds_its_names_kinds_and_labels_before_anything_was_asked(home: Path) -> None:
    async def run() -> str:
        async with running_service(home, lambda _n, _p: FakeEngine()) as service:
            return metrics_text(await service.stats(), service.distributions)

    lines = asyncio.run(run()).splitlines()
    for kind, names in (("histogram", NAMES), ("gauge", GAUGES), ("counter", COUNTERS)):
        for name in names:
            assert f"# TYPE akashic_{name} {kind}" in lines
            end = "_count" if kind == "histogram" else ""
            assert any(line.startswith((f"akashic_{name}{end} ", f"akashic_{name}{{")) for line in lines), name
    for reason in REASONS:
        assert f'akashic_request_success_total{{finished_reason="{reason}"}} 0' in lines


def test_every_request_and_token_stands_in_the_histograms(home: Path) -> None:
    async def run() -> None:
        async with running_service(home, lambda _n, _p: FakeEngine()) as service:
            done = [await answer(service, ask(user(text))) for text in ("one", "two", "three")]
            page = metrics_text(await service.stats(), service.distributions)
        values = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
        told = {name: int(values[f"akashic_{name}_count"]) for name in NAMES}
        tokens = sum(d.completion_tokens for d in done)
        between = tokens - len(done)
        assert told["time_to_first_token_seconds"] == told["e2e_request_latency_seconds"] == 3
        assert told["inter_token_latency_seconds"] == told["time_per_output_token_seconds"] == between
        assert float(values["akashic_request_generation_tokens_sum"]) == tokens
        assert float(values["akashic_request_prompt_tokens_sum"]) == sum(d.prompt_tokens for d in done)
        assert values['akashic_time_to_first_token_seconds_bucket{le="+Inf"}'] == "3"
        assert values['akashic_e2e_request_latency_seconds_bucket{le="7680.0"}'] == "3"
        for name in NAMES:
            assert f"# TYPE akashic_{name} histogram" in page.splitlines()
        reasons = {d.finish_reason for d in done}
        ended = [int(values[f'akashic_request_success_total{{finished_reason="{reason}"}}']) for reason in reasons]
        assert sum(ended) == 3

    asyncio.run(run())
