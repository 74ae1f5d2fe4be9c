"""What sparse decode costs in likelihood: the same next tokens of a text, read densely and with few pages a KV head.

PYTHONPATH=daemon:kernels python tests/bench/torch_sparse.py MODEL.gguf TEXT --context 2048 --tokens 128 --blocks 2 4 8

The context is prefilled (always dense), then the text goes on token by token. Prints the mean negative log-likelihood of these
tokens, and how often the likeliest token stays the same.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from akashic_daemon.engine.base import BatchItem
from akashic_daemon.engine.llama_cpp.vocabulary import LlamaVocabulary
from akashic_daemon.engine.torch_engine import TorchEngine, TorchOptions
from akashic_daemon.types import SequenceId

A = SequenceId(0)


def rows(model: Path, tokens: list[int], context: int, blocks: int) -> Any:
    """Return the logits of each token after the context, decoded one by one."""
    options = TorchOptions(
        name="model",
        path=model,
        window_tokens=len(tokens),
        kv_tokens=len(tokens),
        max_sequences=1,
        sparse_blocks=blocks,
    )
    engine = TorchEngine(options, LlamaVocabulary(model))
    for start in range(0, context, 512):
        part = tokens[start : min(start + 512, context)]
        engine.decode([BatchItem(A, part, start, logits=True)])
    out = []
    for at in range(context, len(tokens)):
        engine.decode([BatchItem(A, [tokens[at]], at, logits=True)])
        out.append(engine.logits(0)[0])
    engine.close()
    return np.array(out[:-1], np.float64)


def likelihood(logits: Any, tokens: list[int]) -> float:
    """Return the mean negative log-likelihood of `tokens`, one a row."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    chosen = shifted[np.arange(len(tokens)), tokens] - np.log(np.exp(shifted).sum(axis=1))
    return float(-chosen.mean())


def main() -> None:
    """Measure dense, then each number of blocks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--blocks", type=int, nargs="+", default=[2, 4, 8])
    wanted = parser.parse_args()
    vocabulary = LlamaVocabulary(wanted.model)
    tokens = vocabulary.tokenize(wanted.text.read_text("utf-8"), special=False)[: wanted.context + wanted.tokens + 1]
    if len(tokens) <= wanted.context + 1:
        raise SystemExit(f"the text has {len(tokens)} tokens; the context alone takes {wanted.context}")
    following = tokens[wanted.context + 1 :]
    dense = rows(wanted.model, tokens, wanted.context, 0)
    print(f"dense: {likelihood(dense, following):.4f} nats a token over {len(following)} tokens")
    for blocks in wanted.blocks:
        found = rows(wanted.model, tokens, wanted.context, blocks)
        same = float((found.argmax(axis=1) == dense.argmax(axis=1)).mean())
        worse = likelihood(found, following) - likelihood(dense, following)
        print(
            f"{blocks} blocks, the first and the last two of {-(-wanted.context // 128)} pages: {worse:+.4f} nats a token, "
            f"{same:.1%} of the likeliest tokens the same"
        )


if __name__ == "__main__":
    main()
