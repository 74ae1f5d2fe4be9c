"""A decoder layer's linear layers of one row against cuBLAS and copy speed, on matrices of Llama-3-8B's shapes.

PYTHONPATH=kernels python kernels/bench/few_rows.py [--search]

Each is replayed in a CUDA graph over copies that together are larger than the L2 cache. --search tries launch shapes.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable

import torch

from akashic_kernels.few_rows import api

SHAPES = {
    "qkv": (6144, 4096, {"norm": True}),
    "attention_out": (4096, 4096, {"residual": True}),
    "gate_up": (28672, 4096, {"norm": True, "gated": True}),
    "down": (4096, 14336, {"residual": True}),
    "head": (128256, 4096, {"norm": True}),
}
L2_BYTES = 64 << 20


def graph_us(call: Callable[[int], object], copies: int, repeats: int = 20) -> float:
    """Return the median microseconds of one call, in a graph over all copies."""
    call(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(copies):
            call(number)
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / copies)
    return statistics.median(times)


def measure(name: str, rows: int, search: bool) -> None:
    """Print one matrix's line."""
    out_features, wide, what = SHAPES[name]
    copies = max(2, -(-4 * L2_BYTES // (2 * out_features * wide)))
    weights = [torch.randn(out_features, wide, device="cuda", dtype=torch.bfloat16) for _ in range(copies)]
    x = torch.randn(rows, wide, device="cuda", dtype=torch.bfloat16)
    norm = torch.ones(wide, device="cuda", dtype=torch.bfloat16) if "norm" in what else None
    gated = "gated" in what
    features = out_features // 2 if gated else out_features
    residual = torch.zeros(rows, features, device="cuda", dtype=torch.bfloat16) if "residual" in what else None
    out = torch.empty(rows, features, device="cuda", dtype=torch.bfloat16)

    def ours(number: int, shape: tuple[int, int, int] | None = None) -> None:
        api._launch(x, weights[number], None, norm, 1e-5, gated, residual, out, shape)

    size = weights[0].nbytes
    target = [torch.empty_like(w) for w in weights]
    copied = graph_us(lambda n: target[n].copy_(weights[n]), copies)
    library = graph_us(lambda n: torch.nn.functional.linear(x, weights[n]), copies)
    own = graph_us(ours, copies)
    print(
        f"{name:14} rows {rows}  ours {own:7.1f} us ({size / own / 1e6:.2f} TB/s)  cuBLAS alone {library:7.1f} us  "
        f"copy {2 * size / copied / 1e6:.2f} TB/s",
        flush=True,
    )
    if not search:
        return
    found = []
    for shape in itertools.product((2, 4, 8, 16), (256, 512, 1024, 2048), (4, 8)):
        if not 2048 <= shape[0] * shape[1] * rows * (2 if gated else 1) <= 16384 * shape[2] // 4:
            continue
        found.append((graph_us(lambda n, shape=shape: ours(n, shape), copies, 5), shape))
    print("  ", ", ".join(f"{time:.1f} us {shape}" for time, shape in sorted(found)[:5]), flush=True)


def main() -> None:
    """Measure each matrix."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--rows", type=int, nargs="+", default=[1])
    wanted = parser.parse_args()
    for rows in wanted.rows:
        for name in SHAPES:
            measure(name, rows, wanted.search)


if __name__ == "__main__":
    main()
