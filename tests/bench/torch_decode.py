"""Whole-model decode of the torch engine on one GPU, with random weights of a real model's shape, against its ceilings.

PYTHONPATH=daemon:kernels python tests/bench/torch_decode.py --json out.json

Needs torch, triton and numpy. Before anything is timed, the GPU's answers are compared with the CPU reference's on a small
model. `torch_generate.py` compares with transformers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from akashic_daemon.engine.base import BatchItem, ModelInfo, SamplingParams
from akashic_daemon.engine.torch_engine import TorchEngine, TorchOptions
from akashic_daemon.engine.torch_engine.architecture import Architecture
from akashic_daemon.engine.torch_engine.kv import PagedKv
from akashic_daemon.engine.torch_engine.loading import Loaded
from akashic_daemon.engine.torch_engine.pages import PageTable
from akashic_daemon.engine.torch_engine.pool import KvPool
from akashic_daemon.engine.torch_engine.rope import Rope
from akashic_daemon.engine.torch_engine.weights import Layer, Linear, Weights
from akashic_daemon.types import SequenceId

LLAMA_3_8B = Architecture(
    name="llama", layers=32, width=4096, heads=32, kv_heads=8, head_dim=128, inner=14336, vocabulary_size=128256,
    norm_epsilon=1e-5, window_tokens=1 << 20, tied=False, rope=Rope(500000.0 ** (-np.arange(64) / 64)),
)  # fmt: skip
SMALL = Architecture(
    name="llama", layers=3, width=256, heads=8, kv_heads=2, head_dim=32, inner=512, vocabulary_size=300,
    norm_epsilon=1e-5, window_tokens=4096, tied=False, rope=Rope(10000.0 ** (-np.arange(16) / 16)),
)  # fmt: skip
A, B, C = (SequenceId(n) for n in range(3))


class NoVocabulary:
    """Token ids only."""

    chat_template: str | None = None
    bos = eos = digest = ""
    add_bos = False

    def __init__(self, size: int) -> None:
        self.size = size

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        return [byte % self.size for byte in text.encode()]

    def token_bytes(self, token: int) -> bytes:
        return b"?"

    def is_end(self, token: int) -> bool:
        return False

    def close(self) -> None:
        """Nothing is held."""


def random_weights(shape: Architecture, device: torch.device, dtype: torch.dtype, seed: int = 0) -> Weights:
    chance = torch.Generator("cpu" if shape is SMALL else device).manual_seed(seed)

    def matrix(out: int, into: int) -> torch.Tensor:
        values = torch.randn(
            out, into, generator=chance, device=chance.device, dtype=torch.float32 if shape is SMALL else dtype
        )
        scaled: torch.Tensor = (values * into**-0.5).to(device=device, dtype=dtype)
        return scaled

    ones = torch.ones(shape.width, device=device, dtype=dtype)
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    layers = tuple(
        Layer(
            attention_norm=ones, qkv=Linear(matrix(q + 2 * kv, shape.width)), q_norm=None, k_norm=None,
            attention_out=Linear(matrix(shape.width, q)), mlp_norm=ones,
            gate_up=Linear(matrix(2 * shape.inner, shape.width)), down=Linear(matrix(shape.width, shape.inner)),
        )
        for _ in range(shape.layers)
    )  # fmt: skip
    embedding, head = matrix(shape.vocabulary_size, shape.width), matrix(shape.vocabulary_size, shape.width)
    return Weights(embedding, layers, ones, head)


def make_engine(
    shape: Architecture, weights: Weights, cells: int, *, sparse_blocks: int = 0, graphs: bool = True, spare: int = 16
) -> TorchEngine:
    device, dtype = weights.norm.device, weights.norm.dtype
    options = TorchOptions(
        name="random", path=Path(), max_sequences=16, sparse_blocks=sparse_blocks, cuda_graphs=graphs, spare_pages=spare
    )
    pages = -(-cells // options.page_tokens) + spare
    pool = KvPool(shape, pages, options.page_tokens, dtype, device, bounded=sparse_blocks > 0)
    kv = PagedKv(pool, PageTable(pages, options.page_tokens), options.max_sequences)
    return TorchEngine(
        options, NoVocabulary(shape.vocabulary_size), Loaded(shape, weights, kv, cells, make_info(shape))
    )


def make_info(shape: Architecture) -> ModelInfo:
    return ModelInfo(
        name="random", path="", description="", architecture=shape.name, parameters_count=shape.parameters, size_bytes=0,
        kv_bytes_per_token=shape.kv_bytes_per_token(2), kv_bytes=0, vocabulary_size=shape.vocabulary_size,
        trained_window_tokens=shape.window_tokens, window_tokens=shape.window_tokens, chat_template=None, bos="", eos="",
        add_bos=False, fingerprint="random",
    )  # fmt: skip


def check(results: dict[str, Any]) -> None:
    """The same calls on the CPU's reference and on the GPU, with and without graphs: f32, so rounding is small.

    f32 sums of a few hundred products are off by 1e-6, TF32 by 1e-3: what is above 1e-4 fails at the script's end, and so do
    graphs that don't share their memory.
    """
    found: dict[str, list[np.ndarray[Any, Any]]] = {}
    for name, device, graphs in (("cpu", "cpu", False), ("eager", "cuda", False), ("graphs", "cuda", True)):
        weights = random_weights(SMALL, torch.device(device), torch.float32)
        engine = make_engine(SMALL, weights, 1024, graphs=graphs, spare=1)
        found[name] = _script(engine)
        if graphs:
            pools = {tuple(segment["segment_pool_id"]) for segment in torch.cuda.memory_snapshot()}  # type: ignore[no-untyped-call]
            results["graphs_pools"] = len(pools - {(0, 0)})
        engine.close()
    scale = max(float(np.abs(row).max()) for row in found["cpu"])
    for name in ("eager", "graphs"):
        worst = max(float(np.abs(a - b).max()) for a, b in zip(found["cpu"], found[name], strict=True)) / scale
        results[f"check_{name}_relative_error"] = worst


def _script(engine: TorchEngine) -> list[np.ndarray[Any, Any]]:
    tokens = [(7 * n * n + 11 * n) % 300 for n in range(400)]
    out: list[np.ndarray[Any, Any]] = []

    def say(*items: BatchItem) -> None:
        engine.decode(items)
        out.extend(engine.logits(number) for number, item in enumerate(items) if item.logits)

    say(BatchItem(A, tokens[:300], 0, logits=True, all_logits=True))
    engine.share(A, B, 0, 200)
    say(BatchItem(A, [5], 300, logits=True), BatchItem(B, [6], 200, logits=True))
    say(BatchItem(A, tokens[300:340], 301, logits=True), BatchItem(B, [7], 201, logits=True))
    engine.release(A, 40, 90)
    for n in range(6):
        say(BatchItem(A, [n], 341 + n, logits=True))
    saved = engine.save(A, [(0, 40), (90, 347)])
    engine.release(A)
    engine.load(saved, A, [(0, 40), (40, 297)])
    engine.load(saved, C, [(100_000, 100_040), (100_050, 100_307)])
    for n in range(3):
        say(BatchItem(A, [n], 297 + n, logits=True), BatchItem(C, [n], 100_307 + n, logits=True))
    engine.kv.check()
    return out


def fill(engine: TorchEngine, tokens: int) -> None:
    """Let sequence A hold random KV of so many tokens: what it says doesn't matter, what it costs does."""
    kv = engine.kv
    assert isinstance(kv.pool, KvPool)
    for layer in range(kv.pool.layers):
        kv.pool.k[layer].normal_()
        kv.pool.v[layer].normal_()
    kv.commit(kv.grow([A], [tokens], [0]))
    kv.pool.renew(kv.cells(A, 0, tokens))


def decode_s(engine: TorchEngine, start: int, steps: int = 64) -> float:
    """Return the median seconds of a step, sampling and all host work included."""
    sampler = engine.sampler(SamplingParams(temperature=0.0))
    token, times = 1, []
    for n in range(steps + 8):
        begin_s = time.perf_counter()
        engine.decode([BatchItem(A, [token], start + n, logits=True)])
        token = sampler.sample(0)
        times.append(time.perf_counter() - begin_s)
    return statistics.median(times[8:])


def copy_bytes_per_s() -> float:
    """Return the rate of a large copy on the device, bytes read and written."""
    source = torch.empty(4 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / timed(lambda: target.copy_(source))


def timed(call: Callable[[], Any], repeats: int = 10) -> float:
    call()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        begin_s = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin_s)
    return statistics.median(times)


def repos_s(engine: TorchEngine, tokens: int) -> float:
    """Return the median seconds of moving every token of A by one hole's width: save, release and load."""
    times = []
    for n in range(20):
        where = engine.position_range(A)
        assert where is not None
        start = where[0]
        begin_s = time.perf_counter()
        saved = engine.save(A, [(start, start + tokens)])
        engine.release(A)
        engine.load(saved, A, [(n * 100, n * 100 + tokens)])
        times.append(time.perf_counter() - begin_s)
        del saved
    return statistics.median(times)


def measure(contexts: Sequence[int], sparse_contexts: Sequence[int], results: dict[str, Any]) -> None:
    device = torch.device("cuda")
    bandwidth = results["copy_bytes_per_s"] = copy_bytes_per_s()
    torch.cuda.empty_cache()
    weights = random_weights(LLAMA_3_8B, device, torch.bfloat16)
    read_bytes = weights.nbytes - weights.embedding.nbytes
    for name, lengths, blocks in (("dense", contexts, 0), ("sparse", sparse_contexts, 32)):
        for context in lengths:
            engine = make_engine(LLAMA_3_8B, weights, context + 1024, sparse_blocks=blocks)
            fill(engine, context)
            seconds = decode_s(engine, context)
            row = {"tokens_per_s": 1 / seconds, "step_ms": 1e3 * seconds}
            if not blocks:
                moved = read_bytes + context * engine.model.kv_bytes_per_token
                row["of_roofline"] = moved / bandwidth / seconds
            if context == 1 << 17:
                engine.release(A, context)
                row["repos_us"] = 1e6 * repos_s(engine, context)
            results[f"{name}_{context}"] = row
            print(name, context, row, flush=True)
            engine.close()
            del engine
            torch.cuda.empty_cache()
    engine = make_engine(LLAMA_3_8B, weights, 9000)
    prompt = np.random.default_rng(0).integers(0, LLAMA_3_8B.vocabulary_size, 8192).tolist()

    def prefill() -> None:
        engine.release(A)
        for start in range(0, 8192, 2048):
            engine.decode([BatchItem(A, prompt[start : start + 2048], start, logits=True)])

    results["prefill_8192_tokens_per_s"] = 8192 / timed(prefill, 3)
    engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--dense", type=int, nargs="*", default=[8192, 32768, 1 << 17, 1 << 18])
    parser.add_argument("--sparse", type=int, nargs="*", default=[32768, 1 << 18])
    wanted = parser.parse_args()
    results: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    try:
        check(results)
        print(results, flush=True)
        measure(wanted.dense, wanted.sparse, results)
    finally:
        print(json.dumps(results, indent=1))
        if wanted.json:
            wanted.json.write_text(json.dumps(results, indent=1))
    wrong = [name for name, value in results.items() if name.startswith("check_") and not value < 1e-4]
    if results["graphs_pools"] != 1:
        raise SystemExit(f"the graphs of one engine have {results['graphs_pools']} pools of memory, not one")
    if wrong:
        raise SystemExit(f"the GPU's answers differ from the reference's: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
