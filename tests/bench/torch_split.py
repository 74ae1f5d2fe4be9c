"""Layers over several GPUs: the same answers as on one, and what a step costs; and auto, on a GPU that is nearly full.

PYTHONPATH=daemon:kernels:tests python tests/bench/torch_split.py --devices cuda:0,cuda:1 [--folder DIR] [--json out.json]

On one GPU, name it twice. Compared are logits of a small model in f32 over prefill, decode, Drop, Repos, splice, export and
import, dense, sparse and with KV in RAM; then steps of Llama-3-8B's shape with random weights are timed. --folder: a model to
load with so little left on the first GPU that it doesn't fit there (`torch_random_folder.py` writes one).
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
from akashic_daemon.engine.torch_engine.architecture import Architecture
from akashic_daemon.engine.torch_engine.loading import Loaded, make_kv
from akashic_daemon.engine.torch_engine.placement import runs_of
from akashic_daemon.engine.torch_engine.tokenizer import HfTokenizer
from akashic_daemon.engine.torch_engine.weights import Layer, Linear, Weights
from bench.torch_decode import LLAMA_3_8B, SMALL, A, B, NoVocabulary, make_info, random_weights

LEFT_BYTES = 10 << 30
TEXT = [(7 * n * n + 11 * n) % 300 for n in range(1500)]


def spread(weights: Weights, devices: list[torch.device]) -> Weights:
    """Return copies of weights whose layers lie on devices in turn of runs."""
    count = len(weights.layers)
    where = [devices[n * len(devices) // count] for n in range(count)]

    def linear(of: Linear, device: torch.device) -> Linear:
        return Linear(of.weight.to(device), None if of.bias is None else of.bias.to(device))

    def layer(of: Layer, device: torch.device) -> Layer:
        return replace(
            of, attention_norm=of.attention_norm.to(device), mlp_norm=of.mlp_norm.to(device), qkv=linear(of.qkv, device),
            attention_out=linear(of.attention_out, device), gate_up=linear(of.gate_up, device),
            down=linear(of.down, device),
        )  # fmt: skip

    return Weights(
        weights.embedding.to(devices[0]),
        tuple(layer(of, device) for of, device in zip(weights.layers, where, strict=True)),
        weights.norm.to(devices[-1]),
        weights.head.to(devices[-1]),
    )


def engine(
    shape: Architecture, weights: Weights, devices: list[torch.device], cells: int, kind: torch.dtype, **more: Any
) -> TorchEngine:
    options = TorchOptions(name="random", path=Path(), max_sequences=4, spare_pages=4, **more)
    count = shape.layers
    counts = [sum(n * len(devices) // count == part for n in range(count)) for part in range(len(devices))]
    kv = make_kv(options, shape, cells, kind, runs_of(devices, counts))
    return TorchEngine(
        options,
        NoVocabulary(shape.vocabulary_size),
        Loaded(shape, spread(weights, devices), kv, cells, make_info(shape)),
    )


def script(engine: TorchEngine) -> list[np.ndarray[Any, Any]]:
    """Do a bit of everything; return the logits on the way."""
    out: list[np.ndarray[Any, Any]] = []

    def say(*items: BatchItem) -> None:
        engine.decode(items)
        out.extend(engine.logits(number) for number in range(len(items)))

    say(BatchItem(A, TEXT, 0, logits=True))
    engine.share(A, B, 0, 900)
    for n in range(20):
        say(BatchItem(A, [n], 1500 + n, logits=True), BatchItem(B, [n + 5], 900 + n, logits=True))
    engine.release(A, 40, 300)
    saved = engine.save(A, [(0, 40), (300, 1520)])
    engine.release(A)
    engine.load(saved, A, [(0, 40), (40, 1260)])
    room = bytearray(engine.export_bytes(400, "as_computed"))
    engine.export_cells(B, 100, 500, memoryview(room), "as_computed")
    engine.release(B, 100, 500)
    engine.import_cells(memoryview(room), B, 100, 500)
    for n in range(20):
        say(BatchItem(A, [n], 1260 + n, logits=True), BatchItem(B, [n + 5], 920 + n, logits=True))
    engine.defer(BatchItem(A, TEXT[:300], 1280, logits=False))
    engine.release(A, 1300, 1400)
    say(BatchItem(A, TEXT[:50], 1580, logits=True))
    engine.kv.check()
    engine.close()
    return out


WAYS: dict[str, tuple[torch.dtype, dict[str, int]]] = {
    "dense": (torch.float32, {}),
    "sparse": (torch.float32, {"sparse_blocks": 4}),
    "8 bits": (torch.int8, {}),
    "in RAM, dense": (torch.float32, {"gpu_kv_tokens": 6144}),
    "in RAM, sparse": (torch.float32, {"gpu_kv_tokens": 6144, "sparse_blocks": 4}),
    "in RAM, sparse, 8 bits": (torch.int8, {"gpu_kv_tokens": 6144, "sparse_blocks": 4}),
}


def compare(devices: list[torch.device]) -> dict[str, float]:
    """Return the largest difference from one device's logits in each way, relative to the largest logit."""
    shape = replace(SMALL, layers=6)
    weights = random_weights(shape, devices[0], torch.float32)
    found = {}
    for name, (kind, more) in WAYS.items():
        one = script(engine(shape, weights, devices[:1], 4096, kind, cuda_graphs=False, **more))
        most = max(float(np.abs(row).max()) for row in one)
        for graphs in (False, True):
            split = script(engine(shape, weights, devices, 4096, kind, cuda_graphs=graphs, **more))
            told = f"{name}, {'CUDA graphs' if graphs else 'no graphs'}"
            found[told] = max(float(np.abs(a - b).max()) for a, b in zip(one, split, strict=True)) / most
            print("differs by", told, found[told], flush=True)
    return found


def step_ms(engine: TorchEngine, context: int, steps: int = 32) -> float:
    kv = engine.kv
    kv.commit(kv.grow([A], [context], [0]))
    times = []
    for n in range(steps + 8):
        begin_s = time.perf_counter()
        engine.decode([BatchItem(A, [n], context + n, logits=True)])
        engine.logits(0)
        times.append(time.perf_counter() - begin_s)
    engine.close()
    return 1e3 * statistics.median(times[8:])


def timed(devices: list[torch.device]) -> dict[str, float]:
    """Return milliseconds of a step at 8K on one device, with graphs and without, and on all."""
    weights = random_weights(LLAMA_3_8B, devices[0], torch.bfloat16)
    made = (LLAMA_3_8B, weights)
    found = {
        "one, CUDA graphs": step_ms(engine(*made, devices[:1], 16384, torch.bfloat16), 8192),
        "one, no graphs": step_ms(engine(*made, devices[:1], 16384, torch.bfloat16, cuda_graphs=False), 8192),
        "split, CUDA graphs": step_ms(engine(*made, devices, 16384, torch.bfloat16), 8192),
        "split, no graphs": step_ms(engine(*made, devices, 16384, torch.bfloat16, cuda_graphs=False), 8192),
    }
    print("ms a step at 8K:", found, flush=True)
    return found


def nearly_full(folder: Path) -> dict[str, Any]:
    """Load by auto where the first GPU has little left, and decode."""
    free, _ = torch.cuda.mem_get_info(0)
    held = torch.empty(free - LEFT_BYTES, dtype=torch.uint8, device="cuda:0")
    one = TorchEngine(TorchOptions(name="m", path=folder, kv_tokens=16384, window_tokens=16384), HfTokenizer(folder))
    one.decode([BatchItem(A, list(range(200)), 0, logits=True)])
    finite = bool(np.isfinite(one.logits(0)).all())
    told = {"warnings": one.warnings, "devices": one.model.metadata["devices"], "finite": finite}
    one.close()
    del held
    print("nearly full:", told, flush=True)
    return told


def main() -> None:
    """Compare, time and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", default="cuda:0,cuda:1")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--small-only", action="store_true", help="Compare, and time nothing.")
    parser.add_argument("--json", type=Path)
    wanted = parser.parse_args()
    devices = [torch.device(name) for name in wanted.devices.split(",")]
    results: dict[str, Any] = {"devices": wanted.devices, "names": [torch.cuda.get_device_name(d) for d in devices]}
    results["relative_difference"] = compare(devices)
    if not wanted.small_only:
        results["step_ms_8k"] = timed(devices)
    if wanted.folder:
        results["nearly full"] = nearly_full(wanted.folder)
    if wanted.json:
        wanted.json.write_text(json.dumps(results, indent=1))
    if any(results["relative_difference"].values()):
        raise SystemExit("answers on several devices differ from those on one: they are to be equal bit for bit")
    auto = results.get("nearly full", {"finite": True, "devices": wanted.devices})
    if not auto["finite"] or "," not in str(auto["devices"]):
        raise SystemExit(
            f"a model that is too large for what is left of a GPU was not divided, or computes nonsense: {auto}"
        )


if __name__ == "__main__":
    main()
