"""What sparse decode finds and loses against dense over context length and pages read, on a real model.

PYTHONPATH=daemon:kernels:tests python tests/bench/torch_needle.py --lengths 1024 2048 4096 --blocks 2 4 8 [--hot 0.25]

Needles: a sentence "The secret number of NAME is NNNNN." stands at several depths in other text; the question comes at the end
and is continued token by token. Recall: is each digit's token the likeliest? Likelihood: nats a token of text that goes on,
over dense. With --hot, KV stands in RAM and the device keeps that share of the pages: which share of the tiles that a step
reads lack then, and how many came ahead, is counted. Model: SmolLM2 from its package, or --model FILE.gguf. Runs on CPUs.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from akashic_daemon.engine.base import BatchItem
from akashic_daemon.engine.llama_cpp.model_file import embedded_model_path
from akashic_daemon.engine.llama_cpp.vocabulary import LlamaVocabulary
from akashic_daemon.engine.torch_engine import TorchEngine, TorchOptions
from akashic_daemon.engine.torch_engine.ram_pool import RamPool
from akashic_daemon.types import SequenceId

A, B = SequenceId(0), SequenceId(1)
NAMES = ("Aldara", "Borin", "Celise", "Dorian", "Evarie", "Farold")
NOUNS = [
    "river",
    "mountain",
    "harbour",
    "market",
    "garden",
    "library",
    "tower",
    "bridge",
    "forest",
    "village",
    "meadow",
    "castle",
]
VERBS = ["crosses", "borders", "feeds", "shelters", "overlooks", "divides", "supplies", "surrounds"]
PAGE = 128


def filler(chance: random.Random, sentences: int) -> list[str]:
    """Return sentences of a made-up description, no two alike for long."""
    return [
        f"The {chance.choice(NOUNS)} of the {chance.choice(('north', 'south', 'east', 'west'))} {chance.choice(VERBS)} the "
        f"{chance.choice(NOUNS)} where {chance.randint(2, 90)} people {chance.choice(('work', 'trade', 'rest', 'sing'))}."
        for _ in range(sentences)
    ]


def haystack(chance: random.Random, vocabulary: Any, length: int, depth: float) -> tuple[list[int], str, str]:
    """Return the tokens of a text of about `length` with a needle, its question and its answer."""
    name, number = chance.choice(NAMES), str(chance.randint(10000, 99999))
    sentences = filler(chance, length // 14)
    while len(vocabulary.tokenize(" ".join(sentences), special=False)) > length - 40:
        sentences.pop()
    sentences.insert(int(depth * len(sentences)), f"The secret number of {name} is {number}.")
    question = f" Remember what was said. The secret number of {name} is"
    return vocabulary.tokenize(" ".join(sentences), special=False), question, f" {number}"


class Measured:
    """One engine, dense or sparse, and what it says at the end of texts that it shares with the others."""

    def __init__(self, model: Path, cells: int, blocks: int, hot: float, ahead: int) -> None:
        pages = -(-cells // PAGE)
        layers = 30
        gpu = (int(hot * pages) - (-2 * pages // layers) + 1) * PAGE if hot and blocks else 0
        options = TorchOptions(
            name="model", path=model, window_tokens=cells, kv_tokens=cells, max_sequences=2, sparse_blocks=blocks,
            gpu_kv_tokens=gpu, open_pages=1, spare_pages=2,
            prefetch_tiles=ahead,
        )  # fmt: skip
        self.engine = TorchEngine(options, LlamaVocabulary(model))
        self.blocks = blocks

    def go_on(self, tokens: list[int], start: int) -> Any:
        """Decode tokens one by one; return the logits after each."""
        rows = []
        for n, token in enumerate(tokens):
            self.engine.decode([BatchItem(A, [token], start + n, logits=True)])
            rows.append(self.engine.logits(0)[0].astype(np.float64))
        return np.array(rows)

    def lacking(self) -> tuple[int, int, int]:
        """Return tiles wanted, lacked and come ahead so far."""
        pool = self.engine.kv.pool
        return pool.hot.counts() if isinstance(pool, RamPool) and pool.hot is not None else (0, 0, 0)


def likelihood(rows: Any, following: list[int]) -> float:
    """Return the mean negative log-likelihood of the tokens that follow each row."""
    shifted = rows - rows.max(axis=1, keepdims=True)
    chosen = shifted[np.arange(len(following)), following] - np.log(np.exp(shifted).sum(axis=1))
    return float(-chosen.mean())


def measure(wanted: argparse.Namespace, model: Path) -> list[dict[str, Any]]:
    """Measure each length with each number of blocks; 0 is dense."""
    vocabulary = LlamaVocabulary(model)
    rows = []
    for length in wanted.lengths:
        found: dict[int, dict[str, Any]] = {}
        for blocks in (0, *wanted.blocks):
            found[blocks] = _of_length(
                Measured(model, length + 256, blocks, wanted.hot, wanted.ahead), vocabulary, length, wanted
            )
            row = {"length": length, "blocks": blocks, **found[blocks]}
            row["nats_over_dense"] = found[blocks]["nats"] - found[0]["nats"]
            rows.append(row)
            print(json.dumps(row), flush=True)
    return rows


def _of_length(one: Measured, vocabulary: Any, length: int, wanted: argparse.Namespace) -> dict[str, Any]:
    right = digits = whole = 0
    nats = []
    for number, depth in enumerate(wanted.depths):
        chance = random.Random(1000 * length + number)
        text, question, answer = haystack(chance, vocabulary, length, depth)
        asked, said = (vocabulary.tokenize(part, special=False) for part in (question, answer))
        for start in range(0, len(text), 512):
            one.engine.decode([BatchItem(A, text[start : start + 512], start, logits=True)])
        rows = one.go_on([*asked, *said], len(text))[len(asked) - 1 : -1]
        hits = [int(row.argmax()) == token for row, token in zip(rows, said, strict=True)]
        right, digits, whole = right + sum(hits), digits + len(hits), whole + all(hits)
        one.engine.release(A, len(text))
        going_on = vocabulary.tokenize(" " + " ".join(filler(chance, 6)), special=False)[: wanted.tokens]
        nats.append(likelihood(one.go_on(going_on, len(text))[:-1], going_on[1:]))
        one.engine.release(A)
    tiles, lacked, ahead = one.lacking()
    told = {"tiles": tiles, "lacked": lacked / tiles, "ahead": ahead / tiles} if tiles else {}
    one.engine.close()
    share = {"needles": whole / len(wanted.depths), "needle_tokens": right / digits}
    return {"pages": -(-length // PAGE), "nats": float(np.mean(nats)), **share, **told}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048, 4096])
    parser.add_argument("--blocks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--depths", type=float, nargs="+", default=[0.1, 0.3, 0.5, 0.7, 0.9])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--hot", type=float, default=0.0, help="Share of the pages that the device keeps; 0: all.")
    parser.add_argument("--ahead", type=int, default=4, help="Tiles a head that come ahead of a step, with --hot.")
    parser.add_argument("--json", type=Path)
    wanted = parser.parse_args()
    model = wanted.model or embedded_model_path()
    if model is None:
        raise SystemExit("the embedded model isn't installed; name one with --model")
    rows = measure(wanted, model)
    if wanted.json:
        wanted.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
