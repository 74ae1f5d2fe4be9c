"""Times a model's decoding on the torch engine against the memory's speed and, where it can open the model, transformers."""

from __future__ import annotations

import importlib.util
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch

from akashic_daemon.config import Settings
from akashic_daemon.engine.base import BatchItem
from akashic_daemon.engine.host import KnownModel, torch_engine
from akashic_daemon.engine.torch_engine import TorchEngine
from akashic_daemon.speed.stopwatch import Stopwatch
from akashic_daemon.types import SequenceId

_log = logging.getLogger(__name__)

_PIECE_TOKENS, _STEPS, _WARM, _ROUNDS = 512, 24, 4, 3
_THEIRS = "transformers' generate"
_FAILURES = (RuntimeError, ValueError, TypeError, OSError, ImportError, LookupError, AttributeError)
"""What transformers, and compiling, fail by: figures of our own don't depend on it."""
Row = dict[str, Any]


def contexts(engine: TorchEngine, *, full: bool) -> list[int]:
    """Return the lengths to decode at, as far as the model serves them."""
    on_gpu = engine.kv.pool.device.type == "cuda"
    wanted = ([2048, 8192, 32768] if full else [2048, 8192]) if on_gpu else ([256, 1024, 4096] if full else [256, 1024])
    most = min(engine.model.window_tokens, engine.capabilities.kv_cells) - _STEPS - _WARM
    return [n for n in wanted if n <= most]


def time_decode(known: KnownModel, settings: Settings, *, full: bool) -> Iterator[Row]:
    """Yield rows as `time_kernels` does; the engine computes as the settings say.

    Where transformers should be able to and can't, its row has the reason as `absent`.
    """
    engine = torch_engine(settings.config, known.name, known.path)
    assert isinstance(engine, TorchEngine)
    device = engine.kv.pool.device
    try:
        copied = Stopwatch(device).copy_bytes_per_s()
        yield {"what": "copy on the device", "value": copied / 1e9, "unit": "GB/s", "ceiling": "", "of_ceiling": None}
        theirs, absent = _Transformers.opened(known.path, device, full=full)
        for context in contexts(engine, full=full):
            seconds = _step_s(engine, context)
            # A copy's bytes are counted twice, read and written; a step only reads.
            moved = engine.read_bytes + context * engine.model.kv_bytes_per_token
            row = {"what": f"decode at {context:,} tokens", "value": 1 / seconds, "unit": "tok/s"}
            yield row | {"ceiling": "weights and KV at copy's speed", "of_ceiling": moved / copied / seconds}
            if theirs is not None:
                found = theirs.best(context)
                if found is not None:
                    way, theirs_s = found
                    yield row | {"ceiling": f"{_THEIRS} ({way})", "of_ceiling": theirs_s / seconds}
                    continue
                absent = "; ".join(f"{way}: {why}" for way, why in theirs.failed.items())
            if absent:
                yield row | {"ceiling": _THEIRS, "of_ceiling": None, "absent": absent}
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


class _Transformers:
    """The same model by transformers, in each of its ways that runs here; the fastest one counts."""

    def __init__(self, path: Path, device: torch.device, *, full: bool) -> None:
        from transformers import AutoModelForCausalLM  # type: ignore[import-not-found, unused-ignore]

        kind = torch.float32 if device.type == "cpu" else torch.bfloat16
        loaded = AutoModelForCausalLM.from_pretrained(path, dtype=kind, attn_implementation="sdpa")
        self._model = loaded.to(device).eval()
        self._ways: dict[str, dict[str, Any]] = {"sdpa": {}}
        if full and device.type == "cuda":  # compiles for a minute
            self._ways["sdpa, static cache, compiled"] = {"cache_implementation": "static"}
        self._device = device
        self.failed: dict[str, str] = {}
        """Ways that don't run here, and why."""

    @classmethod
    def opened(cls, path: Path, device: torch.device, *, full: bool) -> tuple[_Transformers | None, str]:
        """Open a folder; None with the reason where it fails, without one where it isn't installed or the model is no folder."""
        if not path.is_dir() or importlib.util.find_spec("transformers") is None:
            return None, ""
        try:
            return cls(path, device, full=full), ""
        except _FAILURES as error:
            _log.warning("transformers can't open %s, and is left out: %s", path, error)
            return None, f"it can't open the model: {error}"

    def best(self, context: int) -> tuple[str, float] | None:
        """Return the fastest way at a context, and its seconds of a token. A way that fails is logged and left out.

        None when none of them runs.
        """
        found = {}
        for name, options in list(self._ways.items()):
            try:
                found[name] = self._token_s(context, options)
            except _FAILURES as error:
                _log.warning("%s with %s is left out: %s", _THEIRS, name, error)
                self.failed[name] = str(error)
                del self._ways[name]
        if not found:
            return None
        name = min(found, key=lambda way: found[way])
        return name, found[name]

    def _token_s(self, context: int, options: dict[str, Any]) -> float:
        prompt = torch.randint(0, 100, (1, context), device=self._device)

        def run(count: int) -> float:
            begin_s = time.perf_counter()
            self._model.generate(
                prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=count, min_new_tokens=count,
                do_sample=False, **options,
            )  # fmt: skip
            if self._device.type == "cuda":
                torch.cuda.synchronize()
            return time.perf_counter() - begin_s

        long, short = _STEPS + 1, 1
        run(long)
        run(short)
        return (median(run(long) for _ in range(_ROUNDS)) - median(run(short) for _ in range(_ROUNDS))) / _STEPS
