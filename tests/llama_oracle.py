"""An independent forward pass of the tiny models in numpy float64, along any path: what logits *should* be.

Shares no code with the product but the naive twin, which says what each token sees and where. Each token's hidden states
are computed once, when it is appended; K is kept unturned and turned to the position in force at each query, so that
Repos needs no copying here and can't be got wrong in the same way. Rope and its scalings are written down again on purpose.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path as FilePath
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from akashic_daemon.program import oracle
from akashic_daemon.program.path import Path

Array = npt.NDArray[np.float64]


class LlamaOracle:
    """One tiny GGUF. `window` is the context's size, which picks LongRoPE's table."""

    def __init__(self, file: FilePath, window: int = 0) -> None:
        reader = gguf.GGUFReader(file)
        self._fields: Mapping[str, Any] = {
            name: field.contents() for name, field in reader.fields.items() if not name.startswith("tokenizer.")
        }
        self._weights = {t.name.removesuffix(".weight"): np.array(t.data, np.float64) for t in reader.tensors}
        self._heads = int(self._number("attention.head_count"))
        self._kv_heads = int(self._number("attention.head_count_kv"))
        self._head_dim = int(self._number("embedding_length")) // self._heads
        self._turning = int(self._number("rope.dimension_count"))
        self._epsilon = self._number("attention.layer_norm_rms_epsilon")
        self._neighbours = self._fields["general.architecture"] == "llama"
        self._layers = [self._layer(f"blk.{n}.") for n in range(int(self._number("block_count")))]
        self._angles, self._magnitude = self._rope(window)

    def _number(self, key: str, default: float | None = None) -> float:
        found = self._fields.get(f"{self._fields['general.architecture']}.{key}", default)
        assert found is not None, key
        return float(found)

    def _layer(self, at: str) -> dict[str, Array]:
        found = {name.removeprefix(at): value for name, value in self._weights.items() if name.startswith(at)}
        if "attn_qkv" in found:
            q, kv = self._heads * self._head_dim, self._kv_heads * self._head_dim
            found["attn_q"], found["attn_k"], found["attn_v"] = np.split(found["attn_qkv"], [q, q + kv])
            found["ffn_gate"], found["ffn_up"] = np.split(found["ffn_up"], 2)
        return found

    def _rope(self, window: int) -> tuple[Array, float]:
        """Return the angle per position of each pair, and what Q and K are multiplied by."""
        pairs = self._turning // 2
        base, trained = self._number("rope.freq_base"), self._number("context_length")
        own = np.array([base ** (-2 * i / self._turning) for i in range(pairs)])
        original = self._number("rope.scaling.original_context_length", trained)
        long = window > original
        table = self._weights.get("rope_freqs", self._weights.get(f"rope_factors_{'long' if long else 'short'}"))
        if table is not None:
            own = own / table
        factor = self._number("rope.scaling.factor", 1.0)
        magnitude = self._number("rope.scaling.attn_factor", 1.0)
        if self._fields.get(f"{self._fields['general.architecture']}.rope.scaling.type") != "yarn":
            return own / factor, magnitude
        low, high = (pairs * math.log(original / (turns * 2 * math.pi)) / math.log(base) for turns in (32.0, 1.0))
        low, high = max(math.floor(low), 0), min(math.ceil(high), self._turning - 1)
        keep = [1 - min(1.0, max(0.0, (i - low) / max(0.001, high - low))) for i in range(pairs)]
        angles = np.array([a * k + a / factor * (1 - k) for a, k in zip(own, keep, strict=True)])
        return angles, magnitude * (1 + 0.1 * math.log(factor))

    def _turned(self, heads: Array, positions: Array) -> Array:
        """Return `heads` [n, heads, dim] turned to `positions` [n]."""
        angle = positions[:, None, None] * self._angles
        cos, sin = np.cos(angle) * self._magnitude, np.sin(angle) * self._magnitude
        half = self._turning // 2
        if self._neighbours:
            first, second = np.arange(0, self._turning, 2), np.arange(1, self._turning, 2)
        else:
            first, second = np.arange(half), np.arange(half, self._turning)
        a, b = heads[..., first], heads[..., second]
        out = heads.copy()
        out[..., first] = a * cos - b * sin
        out[..., second] = a * sin + b * cos
        return out

    def _norm(self, x: Array, weight: Array) -> Array:
        return np.asarray(x / np.sqrt(np.mean(x * x) + self._epsilon) * weight)

    def _heads_of(self, layer: dict[str, Array], name: str, h: Array) -> Array:
        """Return what a matrix makes of `h`, with its bias, each head normed where the model does so: [heads, dim]."""
        heads = (layer[name] @ h + layer.get(f"{name}.bias", 0.0)).reshape(-1, self._head_dim)
        weight = layer.get(f"{name}_norm")
        return heads if weight is None else np.array([self._norm(head, weight) for head in heads])

    def logits(self, path: Path) -> Array:
        """Return each token's logits: [n, vocabulary]."""
        count = len(path.tokens)
        keys = np.zeros((len(self._layers), count, self._kv_heads, self._head_dim))
        values = np.zeros_like(keys)
        out = []
        for index, view in enumerate(oracle.run(path).views):
            seen = np.fromiter(view.sees.keys(), int)
            at = np.fromiter(view.sees.values(), np.float64)
            x = self._weights["token_embd"][path.tokens[index]]
            for number, layer in enumerate(self._layers):
                h = self._norm(x, layer["attn_norm"])
                keys[number, index] = self._heads_of(layer, "attn_k", h)
                values[number, index] = self._heads_of(layer, "attn_v", h)
                q = self._turned(self._heads_of(layer, "attn_q", h)[None], np.array([float(view.position)]))
                x = x + layer["attn_output"] @ self._attend(
                    q[0], self._turned(keys[number, seen], at), values[number, seen]
                )
                h = self._norm(x, layer["ffn_norm"])
                gate = layer["ffn_gate"] @ h
                x = x + layer["ffn_down"] @ (gate / (1 + np.exp(-gate)) * (layer["ffn_up"] @ h))
            out.append(self._weights["output"] @ self._norm(x, self._weights["output_norm"]))
        return np.array(out)

    def _attend(self, q: Array, keys: Array, values: Array) -> Array:
        """Return what `q` [heads, dim] gets from `keys` and `values` [n, kv_heads, dim], flat."""
        grouped = q.reshape(self._kv_heads, -1, self._head_dim)
        scores = np.einsum("gqd,ngd->gqn", grouped, keys) / math.sqrt(self._head_dim)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return np.asarray(np.einsum("gqn,ngd->gqd", weights, values).reshape(-1))


@lru_cache(maxsize=32)
def load(file: FilePath, window: int = 0) -> LlamaOracle:
    """Return the oracle of a file, read once."""
    return LlamaOracle(file, window)


def logits(file: FilePath, path: Path, window: int = 0) -> Array:
    """Return the logits of each token of `path` under the tiny model in `file`: [n, vocabulary]."""
    return load(file, window).logits(path)
