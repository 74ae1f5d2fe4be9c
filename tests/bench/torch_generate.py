"""Greedy decode of the torch engine against transformers' generate on one GPU: the same random model, the same prompt.

PYTHONPATH=daemon:kernels:tests python tests/bench/torch_generate.py [--context 8192] [--tokens 64] [--json out.json]

transformers runs with each attention that is there (sdpa, flash_attention_2, flash_attention_3), with its growing cache and
with its static one, which it compiles. What doesn't run is listed with its reason. A step is the median time between two
tokens, waiting for each as a stream does; the first tokens, which compile, are left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from akashic_daemon.engine.base import BatchItem, SamplingParams
from akashic_daemon.engine.torch_engine.weights import Weights
from bench.torch_decode import LLAMA_3_8B, A, make_engine, random_weights

WARM_UP = 12
GOAL = 1.5
WAYS = [
    (attention, cache)
    for attention in ("sdpa", "flash_attention_2", "flash_attention_3")
    for cache in ("dynamic", "static")
]


class Clock:
    """A streamer that notes when each token is there."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, tokens: torch.Tensor) -> None:
        """Note a token; the first call gives the prompt."""
        tokens.cpu()
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Nothing is held back."""

    def step_ms(self) -> float:
        """Return the median milliseconds of a step."""
        return 1e3 * statistics.median(np.diff(self.times[2 + WARM_UP :]).tolist())


def ours_ms(weights: Weights, prompt: list[int], tokens: int) -> float:
    """Return the median milliseconds of a token, sampled greedily."""
    engine = make_engine(LLAMA_3_8B, weights, len(prompt) + tokens + WARM_UP + 512)
    for start in range(0, len(prompt), 2048):
        engine.decode([BatchItem(A, prompt[start : start + 2048], start, logits=True)])
    sampler, clock = engine.sampler(SamplingParams(temperature=0.0)), Clock()
    for n in range(tokens + WARM_UP + 2):
        token = sampler.sample(0)
        clock.times.append(time.perf_counter())
        engine.decode([BatchItem(A, [token], len(prompt) + n, logits=True)])
    engine.close()
    torch.cuda.empty_cache()
    return clock.step_ms()


def their_model() -> Any:
    """Return transformers' model of the shape, with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM  # type: ignore[import-not-found, unused-ignore]

    shape = LLAMA_3_8B
    config = LlamaConfig(
        hidden_size=shape.width, intermediate_size=shape.inner, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads, vocab_size=shape.vocabulary_size,
        max_position_embeddings=1 << 17, rope_theta=500000.0, attn_implementation="sdpa", tie_word_embeddings=False,
    )  # fmt: skip
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            return LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(torch.float32)


def theirs_ms(model: Any, prompt: list[int], tokens: int, attention: str, cache: str) -> float:
    """Return the median milliseconds of a token in transformers' generate."""
    model.set_attn_implementation(attention)
    given = torch.tensor([prompt], device="cuda")
    count, clock = tokens + WARM_UP + 2, Clock()
    model.generate(
        given, attention_mask=torch.ones_like(given), max_new_tokens=count, min_new_tokens=count, do_sample=False,
        pad_token_id=0, streamer=clock, **({"cache_implementation": "static"} if cache == "static" else {}),
    )  # fmt: skip
    return clock.step_ms()


def main() -> None:
    """Measure ours, then each way of theirs, then ours again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--json", type=Path)
    wanted = parser.parse_args()
    prompt = np.random.default_rng(0).integers(0, LLAMA_3_8B.vocabulary_size, wanted.context).tolist()
    weights = random_weights(LLAMA_3_8B, torch.device("cuda"), torch.bfloat16)
    results: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    results["context"] = wanted.context
    results["ours_ms"] = ours_ms(weights, prompt, wanted.tokens)
    try:
        model = their_model()
    except ImportError as error:
        raise SystemExit(f"ours: {results['ours_ms']:.3f} ms a token; transformers isn't there: {error}") from error
    theirs: dict[str, float] = {}
    for attention, cache in WAYS:
        name = f"{attention}, {cache} cache"
        try:
            theirs[name] = theirs_ms(model, prompt, wanted.tokens, attention, cache)
            results[name] = theirs[name]
        except Exception as error:  # noqa: BLE001 - a way that isn't there is a result
            results[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
        print(name, results[name], flush=True)
        torch.cuda.empty_cache()
    results["ours_again_ms"] = ours_ms(weights, prompt, wanted.tokens)
    if theirs:
        best = min(theirs, key=lambda name: theirs[name])
        results["best"] = best
        results["times_faster"] = theirs[best] / max(results["ours_ms"], results["ours_again_ms"])
        results["wanted_times_faster"] = GOAL
    print(json.dumps(results, indent=1))
    if wanted.json:
        wanted.json.write_text(json.dumps(results, indent=1))
    if not theirs:
        raise SystemExit("none of transformers' ways ran: their reasons are above")
    raise SystemExit(results["times_faster"] < GOAL)


if __name__ == "__main__":
    main()
