"""Ragged prefill against SDPA on contiguous keys: plain, chunks on long contexts, recovery after Drops, other heads.

Run with `PYTHONPATH=kernels python kernels/bench/prefill_attention.py [--tune]`; needs torch, triton, a GPU.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import prefill_history as history
import torch
from measure import DEVICE, Timer, machine, relative_error, report
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from akashic_kernels.kv_quant import quantise_pages
from akashic_kernels.rope import make_rope
from akashic_kernels.rope.reference import rotate
from akashic_kernels.segment_prefill import SegmentPlan, api, plan_segments, segment_prefill
from akashic_kernels.segment_prefill.reference import segment_prefill_reference
from akashic_kernels.views import PageShape

PAGE = 128
REPEATS = 10


class Pool:
    """Random stored keys and values, and queries; the same tokens can be had contiguous and turned to positions."""

    def __init__(self, pages: int, queries: int, heads: tuple[int, int, int], dtype: torch.dtype) -> None:
        self.q_heads, self.kv_heads, self.head_dim = heads
        inv_freq = 500000.0 ** (-torch.arange(0, self.head_dim, 2, dtype=torch.float32) / self.head_dim)
        self.rope = make_rope(inv_freq, device=DEVICE)
        self.shape = PageShape(pages, self.kv_heads, PAGE, self.head_dim)
        raw = torch.randn(self.shape, device=DEVICE, dtype=dtype)
        self.v_pages = torch.randn(self.shape, device=DEVICE, dtype=dtype)
        self.k_pages = rotate(raw, torch.arange(PAGE, device=DEVICE), self.rope, torch.float32).to(dtype)
        self.query = torch.randn(queries, self.q_heads, self.head_dim, device=DEVICE, dtype=dtype)
        self.out = torch.empty_like(self.query)

    def plan(self, case: history.Case) -> SegmentPlan:
        """Plan a case over this pool."""
        segments, views = case.tables()
        return plan_segments(segments, views, self.rope, self.shape, query_heads=self.q_heads, device=DEVICE)

    def run(self, plan: SegmentPlan, **scales: Any) -> Callable[[], object]:
        """Give the launch as a piece of work."""
        query, out = self.query[: plan.query_count], self.out[: plan.query_count]
        return lambda: segment_prefill(query, self.k_pages, self.v_pages, plan, out=out, **scales)

    def contiguous(self, segment: history.Segment) -> tuple[Tensor, Tensor]:
        """Give keys, turned to their positions, and values [1, kv_heads, visible, head_dim] of a segment's views."""
        cells, bases = segment.cells(DEVICE)
        page, slot = cells // PAGE, cells % PAGE
        keys = rotate(self.k_pages[page, :, slot], bases[:, None], self.rope, torch.float32).to(self.k_pages.dtype)
        return keys.transpose(0, 1)[None].contiguous(), self.v_pages[page, :, slot].transpose(0, 1)[None].contiguous()

    def turned(self, start: int, segment: history.Segment) -> Tensor:
        """Give a segment's queries at their positions: [1, q_heads, queries, head_dim]."""
        position = torch.arange(segment.position, segment.position + segment.count, device=DEVICE)
        query = self.query[start : start + segment.count]
        return (
            rotate(query, position[:, None], self.rope, torch.float32)
            .to(query.dtype)
            .transpose(0, 1)[None]
            .contiguous()
        )


def sdpa(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attend as torch does, causal to the lower right."""
    if query.shape[2] == keys.shape[2]:
        return functional.scaled_dot_product_attention(query, keys, values, is_causal=True, enable_gqa=True)
    bias: Any = causal_lower_right(query.shape[2], keys.shape[2])
    return functional.scaled_dot_product_attention(query, keys, values, attn_mask=bias, enable_gqa=True)


def error_figures(pool: Pool, case: history.Case, plan: SegmentPlan, rows: int = 64) -> dict[str, float]:
    """Hold our result and SDPA's of the last rows of a one-segment case against float64."""
    (segment,) = case.segments
    query, keys = pool.turned(0, segment), pool.contiguous(segment)
    theirs = sdpa(query, *keys)[0].transpose(0, 1)[-rows:]
    pool.run(plan)()
    ours = pool.out[segment.count - rows : segment.count].clone()
    last = torch.tensor([[0, rows, 0, len(segment.views), segment.position + segment.count - rows]], dtype=torch.int32)
    views = case.tables()[1]
    truth = segment_prefill_reference(
        pool.query[segment.count - rows : segment.count], pool.k_pages, pool.v_pages, last, views, pool.rope,
        softmax_scale=pool.head_dim**-0.5, compute=torch.float64,
    )  # fmt: skip
    return {"error": relative_error(ours, truth), "sdpa_error": relative_error(theirs, truth)}


def plain(timer: Timer, lengths: list[int], heads: tuple[int, int, int]) -> None:
    """Compare one whole prefill with SDPA's backends on the same tokens."""
    for length in lengths:
        pool = Pool(length // PAGE, length, heads, torch.bfloat16)
        case = history.plain(length)
        plan = pool.plan(case)
        figures: dict[str, Any] = {"length": length, "heads": heads}
        flops = 4 * heads[0] * heads[2] * case.visible_pairs()
        repeats = REPEATS if length <= 65536 else 3
        figures["ours_us"] = timer.microseconds(pool.run(plan), repeats)
        query, (keys, values) = pool.turned(0, case.segments[0]), pool.contiguous(case.segments[0])
        for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
            with sdpa_kernel(backend):
                figures[f"sdpa_{name}_us"] = timer.microseconds(partial(sdpa, query, keys, values), repeats)
        figures["ours_tflops"] = flops / figures["ours_us"] / 1e6
        figures["speed_over_flash"] = figures["sdpa_flash_us"] / figures["ours_us"]
        figures["speed_over_cudnn"] = figures["sdpa_cudnn_us"] / figures["ours_us"]
        if length <= 32768:
            figures |= error_figures(pool, case, plan)
        k8, k_scale = quantise_pages(pool.k_pages)
        v8, v_scale = quantise_pages(pool.v_pages)
        pool.k_pages, pool.v_pages = k8, v8
        int8 = pool.run(plan, k_scale=k_scale, v_scale=v_scale)
        figures["ours_int8_us"] = timer.microseconds(int8, repeats)
        report("plain prefill", figures)


def chunks(timer: Timer, context: int, counts: list[int], heads: tuple[int, int, int]) -> None:
    """Compare a chunk of new tokens on a long context with SDPA, and with the time that reading its KV takes."""
    for count in counts:
        case = history.chunk(context, count)
        pool = Pool(-(-(context + count) // PAGE), count, heads, torch.bfloat16)
        plan = pool.plan(case)
        query, (keys, values) = pool.turned(0, case.segments[0]), pool.contiguous(case.segments[0])
        figures: dict[str, Any] = {
            "context": context,
            "chunk": count,
            "ours_us": timer.microseconds(pool.run(plan), REPEATS),
        }
        figures["sdpa_us"] = timer.microseconds(partial(sdpa, query, keys, values), REPEATS)
        figures["speed_over_sdpa"] = figures["sdpa_us"] / figures["ours_us"]
        figures["ours_tflops"] = 4 * heads[0] * heads[2] * case.visible_pairs() / figures["ours_us"] / 1e6
        figures["pieces"] = plan.kernel.cut.partial_count if plan.kernel else 0
        figures |= error_figures(pool, case, plan, min(count, 64))
        report("chunk", figures)


def recovery(timer: Timer, heads: tuple[int, int, int]) -> None:
    """Compare recovery of a history in one launch with one plain prefill and with replay operation by operation."""
    cases = {
        "40 tool results dropped, keep 12": history.rolling_drop(52, 150, 480, keep=12),
        "40 small drops": history.small_drops(32768, drops=40, tokens=64),
        "40 small drops, Repos after each": history.small_drops(32768, drops=40, tokens=64, repos=True),
        "400 small drops": history.small_drops(32768, drops=400, tokens=16),
    }
    for name, case in cases.items():
        length = case.query_count
        pool = Pool(max(case.page_count, -(-length // PAGE)), length, heads, torch.bfloat16)
        plan, whole = pool.plan(case), pool.plan(history.plain(length // PAGE * PAGE))
        figures: dict[str, Any] = {"case": name, "length": length, "segments": len(case.segments)}
        figures["plan_us"] = wall_microseconds(partial(pool.plan, case))
        figures["one_launch_us"] = timer.microseconds(pool.run(plan), REPEATS)
        figures["plain_us"] = timer.microseconds(pool.run(whole), REPEATS)
        figures["of_plain"] = figures["one_launch_us"] / figures["plain_us"]
        figures["pairs_of_plain"] = case.visible_pairs() / history.plain(length).visible_pairs()
        ways = {"kernel": pool_replay, "sdpa": sdpa_replay, "masked": masked_replay}
        if len(case.segments) > 100:
            del ways["masked"]
        for way, replay in ways.items():
            work = replay(pool, case)
            figures[f"replay_{way}_us"] = wall_microseconds(work)
            figures[f"replay_{way}_over_one_launch"] = figures[f"replay_{way}_us"] / figures["one_launch_us"]
        report("recovery", figures)


def wall_microseconds(work: Callable[[], object], repeats: int = 3) -> float:
    """Give the median time of `work` from start to end, launches included, as a replay can't be captured once and for all."""
    times = []
    for _ in range(repeats + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e6)
    return sorted(times[1:])[repeats // 2]


def pool_replay(pool: Pool, case: history.Case) -> Callable[[], object]:
    """Replay with this kernel, a launch for each segment."""
    plans = [(start, pool.plan(history.Case([segment]))) for start, segment in case.starts()]

    def work() -> None:
        for start, plan in plans:
            part = slice(start, start + plan.query_count)
            segment_prefill(pool.query[part], pool.k_pages, pool.v_pages, plan, out=pool.out[part])

    return work


def sdpa_replay(
    pool: Pool, case: history.Case, attend: Callable[[Tensor, Tensor, Tensor], Tensor] = sdpa
) -> Callable[[], object]:
    """Replay as an engine of contiguous KV does: at each operation gather what is left, turn moved keys, attend."""
    steps = [(pool.turned(start, segment), segment) for start, segment in case.starts()]
    tables = [segment.cells(DEVICE) for _, segment in steps]

    def work() -> None:
        for (query, _), (cells, bases) in zip(steps, tables, strict=True):
            page, slot = cells // PAGE, cells % PAGE
            keys = rotate(pool.k_pages[page, :, slot], bases[:, None], pool.rope, torch.float32).to(query.dtype)
            values = pool.v_pages[page, :, slot]
            attend(query, keys.transpose(0, 1)[None], values.transpose(0, 1)[None])

    return work


def masked_replay(pool: Pool, case: history.Case) -> Callable[[], object]:
    """Replay with a dense mask over all tokens so far, as engines without cuts do."""

    def masked(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        queries, visible = query.shape[2], keys.shape[2]
        mask = torch.ones(queries, visible, dtype=torch.bool, device=DEVICE).tril(visible - queries)
        group = pool.q_heads // pool.kv_heads
        return functional.scaled_dot_product_attention(
            query, keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1), attn_mask=mask
        )

    return sdpa_replay(pool, case, masked)


def tune(timer: Timer) -> None:
    """Try launch settings for each kind of head and pages."""
    kept = api._launch_options
    for heads, quantised in itertools.product([(32, 8, 128), (32, 8, 64), (16, 4, 256)], [False, True]):
        pool = Pool(64, 8192, heads, torch.bfloat16)
        plan = pool.plan(history.plain(8192))
        scales: dict[str, Any] = {}
        if quantised:
            pool.k_pages, scales["k_scale"] = quantise_pages(pool.k_pages)
            pool.v_pages, scales["v_scale"] = quantise_pages(pool.v_pages)
        for tokens, span, warps, stages in itertools.product([32, 64, 128], [64, 128], [4, 8], [1, 2, 3]):
            if tokens > span or (heads[2] > 128 and span > 64) or (heads[2] == 128 and warps == 4):
                continue
            options = {"BLOCK_N": tokens, "SPAN": span, "num_warps": warps, "num_stages": stages}
            api._launch_options = lambda *_, options=options: options  # type: ignore[misc, assignment]
            try:
                median = timer.microseconds(pool.run(plan, **scales), 5)
            except Exception as error:  # noqa: BLE001 - a setting that doesn't fit is a result too
                print(heads, quantised, options, type(error).__name__)
                torch.cuda.synchronize()
                continue
            report("tune", {"heads": heads, "int8": quantised, **options, "us": median})
        api._launch_options = kept


def main() -> None:
    """Measure everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tune", action="store_true", help="try launch settings first")
    parser.add_argument("--lengths", type=int, nargs="+", default=[8192, 32768, 131072])
    parser.add_argument("--context", type=int, default=131072)
    options = parser.parse_args()
    timer = Timer()
    report("machine", machine())
    if options.tune:
        tune(timer)
    recovery(timer, (32, 8, 128))
    plain(timer, options.lengths, (32, 8, 128))
    plain(timer, options.lengths[:1], (32, 8, 64))
    plain(timer, options.lengths[:1], (16, 4, 256))
    chunks(timer, options.context, [1, 16, 128, 1024], (32, 8, 128))


if __name__ == "__main__":
    main()
