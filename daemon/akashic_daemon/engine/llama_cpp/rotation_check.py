"""Trusting our rotation only after the loaded model has agreed with it.

A token that is alone in its sequence attends to itself only, so that its hidden states don't depend on its position: its
K at position p, in *every* layer, is its K at 0 turned by p. Comparing these shows wrong frequencies, pairs, layers
without rope, norms after the rope, and anything that llama.cpp does to K before it stores it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from akashic_daemon.engine.llama_cpp.blob import ByteArray, KvShape, parse_blob
from akashic_daemon.engine.llama_cpp.rope import FloatArray, Layout, Rope
from akashic_daemon.errors import EngineError, Unsupported

Probe = Callable[[Sequence[int]], Sequence[ByteArray]]
"""Computes one and the same token alone at each position, each in an empty sequence, and returns their blobs."""

_QUANTIZED = ("q8_0",)
_MIXED_RUNS = (64, 128, 256, 512)
"""Runs of dimensions that llama.cpp may mix before it quantizes K."""
_F32_ERROR = 1e-5
_F16_ERROR = 3 * 2.0**-11
_NOISE_MARGIN = 4.0
_MOST_NOISE = 0.03
_Q8_0_ERROR = 0.03
"""Of the head's largest value: two roundings to 127 steps, six sigma, with room for unlucky blocks."""


def probe_positions(window_tokens: int) -> list[int]:
    """Return where to compute the token: small steps show fast pairs, the window's end shows slow ones."""
    end = max(1, window_tokens - 1)
    return [0, *sorted({min(7, end), max(1, end // 3), end})]


@dataclass(frozen=True, slots=True)
class Findings:
    """What the loaded model showed. `blobs`: why its blobs can't be read (no relabelling, no moving), None when they can.

    `rope`: the rotation that it was seen to use, mixed or not, or why it is not to be trusted.
    """

    blobs: str | None
    rope: Rope | str


def examine(
    shape: KvShape | str, rope: Rope | str, probe: Probe, window_tokens: int, others: Sequence[Rope] = ()
) -> Findings:
    """Compare `shape` and `rope`, as the metadata give them (or the reason why not), with what the model does.

    A layer may use one of `others` instead (`rope.other_ropes`).
    """
    if isinstance(shape, str):
        return Findings(shape, shape)
    positions = probe_positions(window_tokens)
    try:
        keys = [_keys(blob, shape, position) for blob, position in zip(probe(positions), positions, strict=True)]
    except (EngineError, Unsupported) as error:
        return Findings(error.message, error.message)
    return Findings(None, rope if isinstance(rope, str) else _confirm([rope, *others], shape, positions, keys))


def _keys(blob: ByteArray, shape: KvShape, position: int) -> FloatArray:
    """Return a one-cell blob's K: float32 [layers, kv_heads, head_dim]. Raises EngineError when it is another cell's."""
    parsed = parse_blob(blob, shape)
    if parsed.positions().tolist() != [position]:
        raise EngineError(
            f"saving one token at position {position}: llama.cpp says positions {parsed.positions()[:8].tolist()}"
        )
    return np.concatenate([parsed.keys_as_f32(layer) for layer in range(shape.layers)])


def _confirm(
    candidates: Sequence[Rope], shape: KvShape, positions: Sequence[int], keys: Sequence[FloatArray]
) -> Rope | str:
    """Return the first candidate when each layer agrees with it, else it with what each layer agrees with."""
    plain, reason = candidates[0], ""
    runs = [run for run in _MIXED_RUNS if shape.kv_type in _QUANTIZED and plain.head_dim % run == 0]
    for run in (0, *runs):
        tried = [candidate.mixed(run) for candidate in candidates]
        layers = []
        for layer in range(shape.layers):
            found = _agreeing(tried, shape.kv_type, positions, [k[layer] for k in keys])
            if isinstance(found, str):
                reason = reason or f"layer {layer}: {found}"
                break
            layers.append(found)
        if len(layers) == shape.layers:
            return tried[0] if all(one is tried[0] for one in layers) else replace(tried[0], by_layer=tuple(layers))
    return f"llama.cpp turns this model's keys in a way that isn't understood ({reason})"


def _agreeing(
    candidates: Sequence[Rope], kv_type: str, positions: Sequence[int], keys: Sequence[FloatArray]
) -> Rope | str:
    """Return the first candidate that a layer's `keys`, [kv_heads, head_dim] a position, agree with, or what is wrong."""
    reasons = []
    for candidate in candidates:
        reason = _disagreement(candidate, kv_type, positions, keys)
        if reason is None:
            return candidate
        reasons.append(reason)
    return reasons[0]


def _disagreement(rope: Rope, kv_type: str, positions: Sequence[int], keys: Sequence[FloatArray]) -> str | None:
    first = keys[0]
    for position, found in zip(positions[1:], keys[1:], strict=True):
        turned = rope.rotate(first[None], np.array([position - positions[0]]))[0]
        error = _pair_size(rope, turned - found)
        over = error - _allowed(rope, kv_type, first, position) - _noise(rope, first, found)
        if not np.all(over <= 0):
            head, pair = np.unravel_index(int(np.argmax(over)), over.shape)
            return (
                f"at position {position}, pair {pair} of KV head {head} is off by "
                f"{error[head, pair]:.2g} of {float(np.abs(found).max()):.2g}"
            )
    return None


def _noise(rope: Rope, first: FloatArray, found: FloatArray) -> float:
    """Return what the engine's own arithmetic may add, told from the pairs' lengths, which no rotation changes.

    Fused attention on GPUs accumulates in half precision, so that hidden states differ a little from position to
    position, and K of later layers with them. More than a small part of the largest pair isn't taken for noise.
    """
    size = _pair_size(rope, first)
    change = float(np.abs(_pair_size(rope, found) - size).max())
    return _NOISE_MARGIN * change if change <= _MOST_NOISE * size.max() else 0.0


def _pair_size(rope: Rope, k: FloatArray) -> npt.NDArray[np.float64]:
    """Return each pair's length, turned pairs first: [kv_heads, head_dim / 2]."""
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
            _Q8_0_ERROR * np.abs(k).max(axis=-1, keepdims=True).astype(np.float64), (k.shape[0], k.shape[1] // 2)
        )
    size = _pair_size(rope, k)
    pairs = np.arange(len(rope.frequencies))
    angle = np.zeros(size.shape[-1])
    angle[: len(pairs)] = position * rope.frequencies * (pairs + 4) * 2.0**-23
    stored = _F32_ERROR if kv_type == "f32" else _F16_ERROR
    return np.asarray(size * (stored + np.minimum(angle, 0.1)) + 1e-6 * size.max())
