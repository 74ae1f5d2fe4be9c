"""Times a model's decoding on the torch engine against the memory's speed and, where it can open the model, transformers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import torch

from akashic_daemon.config import Settings
from akashic_daemon.engine.base import BatchItem
from akashic_daemon.engine.host import KnownModel, torch_engine
from akashic_daemon.engine.torch_engine import TorchEngine
from akashic_daemon.speed.stopwatch import Stopwatch
from akashic_daemon.types import SequenceId

_PIECE_TOKENS, _STEPS, _WARM = 512, 24, 4
Row = dict[str, Any]


def contexts(engine: TorchEngine, *, full: bool) -> list[int]:
    """Return the lengths to decode at, as far as the model serves them."""
    on_gpu = engine.kv.pool.device.type == "cuda"
    wanted = ([2048, 8192, 32768] if full else [2048, 8192]) if on_gpu else ([256, 1024, 4096] if full else [256, 1024])
    most = min(engine.model.window_tokens, engine.capabilities.kv_cells) - _STEPS - _WARM
    return [n for n in wanted if n <= most]


def time_decode(known: KnownModel, settings: Settings, *, full: bool) -> Iterator[Row]:
    """Yield rows as `time_kernels` does; the engine computes as the settings say."""
    engine = torch_engine(settings.config, known.name, known.path)
    assert isinstance(engine, TorchEngine)
    device = engine.kv.pool.device
    try:
        copied = Stopwatch(device).copy_bytes_per_s()
        yield {"what": "copy on the device", "value": copied / 1e9, "unit": "GB/s", "ceiling": "", "of_ceiling": None}
        for context in contexts(engine, full=full):
            seconds = _step_s(engine, context)
            # A copy's bytes are counted twice, read and written; a step only reads.
            moved = engine.read_bytes + context * engine.model.kv_bytes_per_token
            row = {"what": f"decode at {context:,} tokens", "value": 1 / seconds, "unit": "tok/s"}
            yield row | {"ceiling": "weights and KV at copy's speed", "of_ceiling": moved / copied / seconds}
            theirs = _transformers_s(known, device, context)
            if theirs is not None:
                yield row | {"ceiling": "transformers' generate", "of_ceiling": theirs / seconds}
    finally:
        engine.close()


def _step_s(engine: TorchEngine, context: int) -> float:
    sequence = SequenceId(0)
    words = engine.tokenize("one two three four five six seven", special=False)
    text = (words * (context // len(words) + 1))[:context]
    for start in range(0, context, _PIECE_TOKENS):
        engine.decode([BatchItem(sequence, text[start : start + _PIECE_TOKENS], start, logits=True)])
    times = []
    for n in range(_STEPS + _WARM):
        begin_s = time.perf_counter()
        engine.decode([BatchItem(sequence, [words[n % len(words)]], context + n, logits=True)])
        times.append(time.perf_counter() - begin_s)
    engine.release(sequence)
    return median(times[_WARM:])


def _transformers_s(known: KnownModel, device: torch.device, context: int) -> float | None:
    """Return the seconds of a token by transformers, None where it isn't installed or the model is no folder of it."""
    if not known.path.is_dir():
        return None
    try:
        from transformers import AutoModelForCausalLM  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return None
    kind = torch.float32 if device.type == "cpu" else torch.bfloat16
    model = AutoModelForCausalLM.from_pretrained(known.path, dtype=kind, attn_implementation="sdpa").to(device).eval()
    prompt = torch.randint(0, 100, (1, context), device=device)

    def run(count: int) -> float:
        begin_s = time.perf_counter()
        model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=count, min_new_tokens=count, do_sample=False
        )
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begin_s

    run(2)
    return (run(_STEPS + 1) - run(1)) / _STEPS
