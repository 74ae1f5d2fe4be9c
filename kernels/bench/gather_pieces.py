"""Scattered pieces between pinned memory and the GPU against large copies and against one copy a piece; appends, int8.

Run with `PYTHONPATH=kernels python kernels/bench/gather_pieces.py`; needs torch, triton, a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from measure import DEVICE, Timer, copy_terabytes_per_second, machine, report
from torch import Tensor

from akashic_kernels.block_summary import make_bounds
from akashic_kernels.kv_gather import kv_gather, kv_scatter
from akashic_kernels.kv_quant import dequantise_pages, quantise_pages
from akashic_kernels.rope import make_rope
from akashic_kernels.rope_append import rope_append

POOL_BYTES = 512 << 20
MOVED_BYTES = 128 << 20
KV_HEADS, PAGE, HEAD_DIM = 8, 128, 128


def median(work: Callable[[], object], repeats: int = 9) -> float:
    """Give the median time of `work` in microseconds, launches included."""
    times = []
    for _ in range(repeats + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return sorted(times[2:])[repeats // 2]


def gather(piece_bytes: int, host_bytes: Tensor, device_bytes: Tensor) -> None:
    """Move pieces in random order both ways, with several numbers of programs."""
    host, pages = (pool.view(-1, piece_bytes) for pool in (host_bytes, device_bytes))
    count = MOVED_BYTES // piece_bytes
    there, here = (torch.randperm(len(pool), device=DEVICE)[:count] for pool in (host, pages))
    large_in = (
        MOVED_BYTES
        / median(lambda: device_bytes[:MOVED_BYTES].copy_(host_bytes[:MOVED_BYTES], non_blocking=True))
        / 1e3
    )
    large_out = (
        MOVED_BYTES
        / median(lambda: host_bytes[:MOVED_BYTES].copy_(device_bytes[:MOVED_BYTES], non_blocking=True))
        / 1e3
    )
    for programs in (8, 16, 32, 64):
        into = MOVED_BYTES / median(partial(kv_gather, host, there, pages, here, programs=programs)) / 1e3
        out = MOVED_BYTES / median(partial(kv_scatter, pages, here, host, there, programs=programs)) / 1e3
        report(
            "pieces",
            {
                "piece_bytes": piece_bytes,
                "programs": programs,
                "gather_gbps": into,
                "scatter_gbps": out,
                "large_in_gbps": large_in,
                "large_out_gbps": large_out,
                "gather_of_large": into / large_in,
                "scatter_of_large": out / large_out,
            },
        )
    pairs = list(zip(there[:1024].tolist(), here[:1024].tolist(), strict=True))

    def one_by_one() -> None:
        for source, target in pairs:
            pages[target].copy_(host[source], non_blocking=True)

    report(
        "pieces one by one",
        {"piece_bytes": piece_bytes, "gbps": len(pairs) * piece_bytes / median(one_by_one, 3) / 1e3},
    )


def beside_compute(host_bytes: Tensor, device_bytes: Tensor) -> None:
    """Tell what a move on its own stream costs a matrix product, and the product the move."""
    host, pages = (pool.view(-1, 32 << 10) for pool in (host_bytes, device_bytes))
    count = MOVED_BYTES >> 15
    there, here = (torch.randperm(len(pool), device=DEVICE)[:count] for pool in (host, pages))
    a = torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16)
    alone = median(lambda: a @ a)
    stream = torch.cuda.Stream()
    for programs in (8, 16, 32):
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            for _ in range(10):
                kv_gather(host, there, pages, here, programs=programs)
        beside = median(lambda: a @ a)
        torch.cuda.synchronize()
        report("product beside a move", {"programs": programs, "alone_us": alone, "beside_us": beside})


def appends(timer: Timer, copy_rate: float) -> None:
    """Append tokens with and without bounds and scales, and quantise pages, against the bytes that they move."""
    rope = make_rope(500000.0 ** (-torch.arange(0, HEAD_DIM, 2, dtype=torch.float32) / HEAD_DIM), device=DEVICE)
    for tokens in (1, 16, 512, 8192):
        pages = max(256, tokens // PAGE)
        shape = (pages, KV_HEADS, PAGE, HEAD_DIM)
        key, value = (torch.randn(tokens, KV_HEADS, HEAD_DIM, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
        row = torch.arange(tokens, device=DEVICE)
        slots = row * PAGE + 77 if tokens <= 16 else row
        figures: dict[str, Any] = {"tokens": tokens}
        for name, quantised, bounded in (("plain", False, False), ("bounds", False, True), ("int8_bounds", True, True)):
            kind = torch.int8 if quantised else torch.bfloat16
            pools: dict[str, Any] = {n: torch.zeros(shape, dtype=kind, device=DEVICE) for n in ("k_pages", "v_pages")}
            if quantised:
                pools |= {n: torch.zeros(shape[:3], device=DEVICE) for n in ("k_scale", "v_scale")}
            if bounded:
                pools["bounds"] = make_bounds(pages, KV_HEADS, HEAD_DIM, dtype=torch.bfloat16, device=DEVICE)
            figures[f"{name}_us"] = timer.microseconds(partial(rope_append, key, value, slots, rope, **pools))
        figures["bytes_over_copy_rate_us"] = 8 * key.numel() / copy_rate / 1e6
        report("append", figures)
    pool = torch.randn(1024, KV_HEADS, PAGE, HEAD_DIM, device=DEVICE, dtype=torch.bfloat16)
    stored, scale = quantise_pages(pool)
    there = timer.microseconds(lambda: quantise_pages(pool, out=stored, scale=scale))
    back = timer.microseconds(lambda: dequantise_pages(stored, scale, out=pool))
    moved = 3 * pool.numel() + 4 * scale.numel()
    report(
        "int8",
        {"quantise_of_copy": moved / there / 1e6 / copy_rate, "dequantise_of_copy": moved / back / 1e6 / copy_rate},
    )


def main() -> None:
    """Measure everything."""
    timer = Timer()
    copy_rate = copy_terabytes_per_second(timer)
    report("machine", {**machine(), "copy_terabytes_per_second": copy_rate})
    host = torch.empty(POOL_BYTES, dtype=torch.uint8, pin_memory=True).random_()
    device = torch.empty(POOL_BYTES, dtype=torch.uint8, device=DEVICE).random_()
    for piece_bytes in (8 << 10, 32 << 10, 128 << 10):
        gather(piece_bytes, host, device)
    beside_compute(host, device)
    appends(timer, copy_rate)


if __name__ == "__main__":
    main()
