"""Trusting our rotation only after the loaded model has agreed with it.

A token that is alone in its sequence attends to itself only, so that its hidden states don't depend on its position: its
K at position p, in *every* layer, is its K at 0 turned by p. Comparing these shows wrong frequencies, pairs, layers
without rope, norms after the rope, and anything that llama.cpp does to K before it stores it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from akashic_daemon.engine.llama_cpp.blob import ByteArray, KvShape, parse_blob
from akashic_daemon.engine.llama_cpp.rope import FloatArray, Layout, Rope

Probe = Callable[[Sequence[int]], Sequence[ByteArray]]
"""Computes one and the same token alone at each position, each in an empty sequence, and returns their blobs."""

_QUANTIZED = ("q8_0",)
_MIXED_RUNS = (64, 128, 256, 512)
"""Runs of dimensions that llama.cpp may mix before it quantizes K."""
_F32_ERROR = 1e-5
_F16_ERROR = 3 * 2.0**-11
_Q8_0_ERROR = 0.03
"""Of the head's largest value: two roundings to 127 steps, six sigma, with room for unlucky blocks."""


def probe_positions(window_tokens: int) -> list[int]:
    """Return where to compute the token: small steps show fast pairs, the window's end shows slow ones."""
    end = max(1, window_tokens - 1)
    return [0, *sorted({min(7, end), max(1, end // 3), end})]


def confirm_rotation(rope: Rope, shape: KvShape, probe: Probe, window_tokens: int) -> Rope | str:
    """Return the rotation that the model was seen to use, mixed or not, or why ours is not to be trusted."""
    positions = probe_positions(window_tokens)
    keys = [_keys(blob, shape) for blob in probe(positions)]
    runs = [run for run in _MIXED_RUNS if shape.kv_type in _QUANTIZED and rope.head_dim % run == 0]
    reason = None
    for candidate in [rope, *map(rope.mixed, runs)]:
        found = _disagreement(candidate, shape.kv_type, positions, keys)
        if found is None:
            return candidate
        reason = reason or found
    return f"llama.cpp turns this model's keys in a way that isn't understood ({reason})"


def _keys(blob: ByteArray, shape: KvShape) -> FloatArray:
    """Return a one-cell blob's K: float32 [layers, kv_heads, head_dim]."""
    parsed = parse_blob(blob, shape)
    assert len(parsed) == 1, len(parsed)
    return np.concatenate([parsed.keys_as_f32(layer) for layer in range(shape.layers)])


def _disagreement(rope: Rope, kv_type: str, positions: Sequence[int], keys: Sequence[FloatArray]) -> str | None:
    first = keys[0]
    for position, found in zip(positions[1:], keys[1:], strict=True):
        delta = np.full(len(first), position - positions[0], np.int64)
        error = _pair_size(rope, rope.rotate(first, delta) - found)
        over = error - _allowed(rope, kv_type, first, position)
        if not np.all(over <= 0):
            layer, head, pair = np.unravel_index(int(np.argmax(over)), over.shape)
            return (
                f"at position {position}, layer {layer}, KV head {head}, pair {pair} is off by "
                f"{error[layer, head, pair]:.2g} of {float(np.abs(found).max()):.2g}"
            )
    return None


def _pair_size(rope: Rope, k: FloatArray) -> npt.NDArray[np.float64]:
    """Return each pair's length, turned pairs first: [layers, kv_heads, head_dim / 2]."""
    k = k.astype(np.float64)
    turned, rest = k[..., : rope.rotated], k[..., rope.rotated :]
    if rope.layout is Layout.NORM:
        first, second = turned[..., ::2], turned[..., 1::2]
    else:
        first, second = turned[..., : rope.rotated // 2], turned[..., rope.rotated // 2 :]
    return np.concatenate([np.hypot(first, second), np.hypot(rest[..., ::2], rest[..., 1::2])], axis=-1)


def _allowed(rope: Rope, kv_type: str, k: FloatArray, position: int) -> npt.NDArray[np.float64]:
    """Return the error that storing K, and llama.cpp's own float32 angles, account for."""
    if kv_type in _QUANTIZED:
        return np.broadcast_to(
            _Q8_0_ERROR * np.abs(k).max(axis=-1, keepdims=True).astype(np.float64), (*k.shape[:2], k.shape[2] // 2)
        )
    size = _pair_size(rope, k)
    pairs = np.arange(len(rope.frequencies))
    angle = np.zeros(size.shape[-1])
    angle[: len(pairs)] = position * rope.frequencies * (pairs + 4) * 2.0**-23
    stored = _F32_ERROR if kv_type == "f32" else _F16_ERROR
    return np.asarray(size * (stored + np.minimum(angle, 0.1)) + 1e-6 * size.max())
