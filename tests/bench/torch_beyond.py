"""Contexts beyond the GPU's KV budget: sparse decode with KV in RAM against all of it on the GPU, on one CUDA device.

PYTHONPATH=daemon:kernels:tests python tests/bench/torch_beyond.py --json out.json

Random weights of a real model's shape. How many tiles lack depends on how much the pages that score best change from step to
step. Random keys all score alike, which is the worst case; `--spread` makes the keys of some pages larger, so that the same
score well more often. What real text does, `tests/bench/torch_needle.py --hot` counts. Before anything is timed, answers of
both ways are compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from akashic_daemon.engine.base import BatchItem
from akashic_daemon.engine.torch_engine import TorchEngine, TorchOptions
from akashic_daemon.engine.torch_engine.attention import PagedAttention
from akashic_daemon.engine.torch_engine.graphs import DecodeGraphs
from akashic_daemon.engine.torch_engine.loading import Loaded, make_kv
from akashic_daemon.engine.torch_engine.pool import KvPool
from akashic_daemon.engine.torch_engine.ram_pool import RamPool
from akashic_daemon.engine.torch_engine.weights import Weights
from bench.torch_decode import LLAMA_3_8B, SMALL, A, NoVocabulary, make_info, random_weights, timed


def make_engine(
    shape: Any,
    weights: Weights,
    cells: int,
    blocks: int,
    gpu_tokens: int,
    prefetch: int = 4,
    *,
    graphs: bool = True,
    dtype: torch.dtype | None = None,
) -> TorchEngine:
    device, dtype = weights.norm.device, dtype or weights.norm.dtype
    options = TorchOptions(
        name="random", path=Path(), max_sequences=4, sparse_blocks=blocks, spare_pages=4, gpu_kv_tokens=gpu_tokens,
        open_pages=1, prefetch_tiles=prefetch, cuda_graphs=graphs,
    )  # fmt: skip
    kv = make_kv(options, shape, cells, dtype, device)
    return TorchEngine(
        options, NoVocabulary(shape.vocabulary_size), Loaded(shape, weights, kv, cells, make_info(shape))
    )


def fill(engine: TorchEngine, tokens: int, spread: float) -> None:
    """Let A hold random KV of so many tokens; the keys of a page in one head are larger by a factor, exp(spread x normal)."""
    kv, pool = engine.kv, engine.kv.pool
    assert isinstance(pool, KvPool)
    engine.release(A)
    if isinstance(pool, RamPool):
        pool.close_pages(range(pool.shape.pages))
    chance = torch.Generator(pool.device).manual_seed(1)
    in_8_bits = pool.k.dtype == torch.int8
    values = torch.empty(pool.k.shape[1:], dtype=torch.float16 if in_8_bits else pool.k.dtype, device=pool.device)
    for layer in range(pool.layers):
        factor = torch.empty(*pool.k.shape[1:3], 1, 1, device=pool.device).normal_(generator=chance).mul_(spread).exp_()
        if in_8_bits:
            for part, scale, wider in zip(
                (pool.k, pool.v), pool.scales, (factor, torch.ones_like(factor)), strict=True
            ):
                part[layer].copy_(values.normal_(generator=chance).mul_(32).clamp_(-127, 127).round_())
                scale[layer].copy_((wider / 32).squeeze(-1).expand(scale[layer].shape))
            continue
        pool.k[layer].copy_(values.normal_(generator=chance).mul_(factor))
        pool.v[layer].copy_(values.normal_(generator=chance))
    kv.commit(kv.grow([A], [tokens], [0]))
    pool.renew(kv.cells(A, 0, tokens))


def check(dtype: torch.dtype | None = None) -> float:
    """Return the largest difference between all KV on the GPU and a quarter of it, relative to the largest logit."""
    shape = replace(SMALL, layers=8)
    weights = random_weights(shape, torch.device("cuda"), torch.float32)
    found = []
    for gpu_tokens, graphs in ((0, True), (4096, False), (4096, True)):
        engine = make_engine(shape, weights, 8192, 3, gpu_tokens, graphs=graphs, dtype=dtype)
        tokens = [(7 * n * n + 11 * n) % 300 for n in range(7000)]
        rows = []
        for start in range(0, 7000, 1000):
            engine.decode([BatchItem(A, tokens[start : start + 1000], start, logits=True)])
            rows.append(engine.logits(0)[0])
        for n in range(200):
            engine.decode([BatchItem(A, [tokens[n]], 7000 + n, logits=True)])
            rows.append(engine.logits(0)[0])
        pool = engine.kv.pool
        if isinstance(pool, RamPool):
            assert pool.hot is not None
            torch.cuda.synchronize()
            pool.hot.check()
            print("check: wanted, lacked, ahead:", pool.hot.counts(), flush=True)
        found.append(np.array(rows))
        engine.close()
    scale = np.abs(found[0]).max()
    return max(float(np.abs(found[0] - other).max() / scale) for other in found[1:])


def decode_s(engine: TorchEngine, context: int, steps: int) -> dict[str, Any]:
    """Time steps at the end of `context`; return the median and what was fetched in a step."""
    engine.release(A, context)
    chance = np.random.default_rng(3)
    hot = engine.kv.pool.hot if isinstance(engine.kv.pool, RamPool) else None
    times = []
    before = (0, 0, 0)
    for n in range(steps + 24):
        if n == 24 and hot is not None:
            before = hot.counts()
        token = int(chance.integers(0, 128000))
        torch.cuda.synchronize()
        begin_s = time.perf_counter()
        engine.decode([BatchItem(A, [token], context + n, logits=True)])
        engine.logits(0)
        times.append(time.perf_counter() - begin_s)
    row: dict[str, Any] = {"step_ms": 1e3 * statistics.median(times[24:])}
    if hot is not None:
        wanted, lacked, ahead = (b - a for a, b in zip(before, hot.counts(), strict=True))
        tile_bytes = sum(part[0, 0].nbytes for part in hot.of_layer(0))
        row |= {
            "lacked": lacked / wanted,
            "fetched_mb": lacked * tile_bytes / steps / 1e6,
            "ahead_mb": ahead * tile_bytes / steps / 1e6,
        }
    return row


def link_bytes_per_s() -> float:
    host = torch.empty(1 << 29, dtype=torch.uint8, pin_memory=True)
    device = torch.empty_like(host, device="cuda")
    return host.nbytes / timed(lambda: device.copy_(host, non_blocking=True), 5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--context", type=int, default=1 << 17)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--blocks", type=int, default=32)
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--spread", type=float, nargs="+", default=[0.0, 0.05, 0.1, 0.2])
    parser.add_argument("--prefetch", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--eight-bits", action="store_true", help="KV in 8 bits, in RAM and on the GPU.")
    wanted = parser.parse_args()
    results: dict[str, Any] = {"device": torch.cuda.get_device_name(), "arguments": str(vars(wanted))}
    kind = torch.int8 if wanted.eight_bits else None
    results["check_relative_difference"] = check(kind)
    results["link_gb_per_s"] = link_bytes_per_s() / 1e9
    print(results, flush=True)
    shape = replace(LLAMA_3_8B, layers=wanted.layers)
    weights = random_weights(shape, torch.device("cuda"), torch.bfloat16)
    everything = make_engine(shape, weights, wanted.context + 512, wanted.blocks, 0, dtype=kind)
    fill(everything, wanted.context, 0.0)
    all_ms = results["all on the GPU"] = decode_s(everything, wanted.context, wanted.steps)
    print("all on the GPU", all_ms, flush=True)
    everything.close()
    del everything
    torch.cuda.empty_cache()
    begin_s = time.perf_counter()
    engine = make_engine(
        shape, weights, wanted.context + 512, wanted.blocks, wanted.context // 4, max(wanted.prefetch), dtype=kind
    )
    pool = engine.kv.pool
    assert isinstance(pool, RamPool)
    assert pool.hot is not None
    results["gpu_gib"], results["hot_pages"] = pool.gpu_bytes / 2**30, pool.hot.slots
    print(
        f"allocated in {time.perf_counter() - begin_s:.1f} s, {pool.gpu_bytes / 2**30:.2f} GiB on the GPU", flush=True
    )
    for spread in wanted.spread:
        fill(engine, wanted.context, spread)
        for prefetch in wanted.prefetch:
            pool.hot.prefetch = prefetch
            assert isinstance(engine._attention, PagedAttention)
            engine._graphs = DecodeGraphs(engine._model, engine._attention, shape.vocabulary_size)
            row = decode_s(engine, wanted.context, wanted.steps)
            row["of_all_on_gpu"] = all_ms["step_ms"] / row["step_ms"]
            results[f"a quarter, spread {spread}, {prefetch} ahead"] = row
            print(f"a quarter, spread {spread}, {prefetch} ahead", row, flush=True)
    if wanted.json:
        wanted.json.write_text(json.dumps(results, indent=1))
    if not results["check_relative_difference"] < 1e-4:
        raise SystemExit("answers with KV in RAM differ from those with all of it on the GPU")


if __name__ == "__main__":
    main()
