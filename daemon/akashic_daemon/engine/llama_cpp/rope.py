"""How a model turns K by position, and turning it on: what Repos needs, since llama.cpp's own shift isn't exact.

llama.cpp turns each pair of K's dimensions by position x frequency. A K that was computed at position p becomes the K of
position q by turning it by (q - p) x frequency: angles in float64, reduced to one turn, magnitude untouched (YaRN's
attention factor is in K already; llama.cpp's shift multiplies it in again). This module knows frequencies and layout, no
cache and no blob. What it works out is a claim: `rotation_check` compares it with the loaded model before it is used.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from akashic_daemon.engine.gguf_header import read_table

FloatArray = npt.NDArray[np.float32]
ComplexArray = npt.NDArray[np.complex64]

_TURN = 2 * math.pi
_ROPE_FACTORS = "rope_freqs.weight"
_ROPE_FACTORS_LONG = "rope_factors_long.weight"
_ROPE_FACTORS_SHORT = "rope_factors_short.weight"
_DEFAULT_BASE = 10000.0
_BETA_FAST = 32.0
_BETA_SLOW = 1.0


class Layout(enum.Enum):
    """Which dimensions form a pair; the values are llama.cpp's rope types."""

    NORM = 0
    """Neighbours: (0, 1), (2, 3), …"""
    NEOX = 2
    """Halves of the turned dimensions: (0, n/2), (1, n/2 + 1), …"""


@dataclass(frozen=True, slots=True, eq=False)
class Rope:
    """One model's rotation of K. `frequencies[i]` is the angle of pair i per position, in radians.

    The first `2 * len(frequencies)` of `head_dim` dimensions turn, the others don't (partial rotary).
    `mixing` above 0: the cache holds each run of so many dimensions multiplied by the orthonormal Walsh-Hadamard
    matrix, as llama.cpp does before it quantizes K. `by_layer` holds each layer's own where layers differ, in the order
    in which blobs hold them; it is empty where they don't.
    """

    frequencies: npt.NDArray[np.float64]
    layout: Layout
    head_dim: int
    mixing: int = 0
    by_layer: tuple[Rope, ...] = ()

    @property
    def rotated(self) -> int:
        """How many dimensions turn."""
        return 2 * len(self.frequencies)

    def mixed(self, run: int) -> Rope:
        """Return the same rotation of a K that is mixed in runs of `run` dimensions."""
        return replace(self, mixing=run)

    def of_layer(self, layer: int) -> Rope:
        """Return the rotation of the blob's layer number `layer`."""
        return self.by_layer[layer] if self.by_layer else self

    def phasors(self, delta: npt.NDArray[np.int64]) -> ComplexArray:
        """Return exp(i x angle) for each of `delta` and each pair: complex64 [len(delta), pairs]."""
        distinct, which = np.unique(delta, return_inverse=True)
        angles = np.remainder(distinct[:, None] * self.frequencies, _TURN).astype(np.float32)
        turned = np.empty(angles.shape, np.complex64)
        turned.real, turned.imag = np.cos(angles), np.sin(angles)
        return turned[which]

    def rotate(self, k: FloatArray, delta: npt.NDArray[np.int64]) -> FloatArray:
        """Return `k`, float32 [cells, kv_heads, head_dim], turned on by `delta` positions a cell."""
        out = np.ascontiguousarray(k, np.float32).copy()
        self.turn(out, self.phasors(delta))
        return out

    def turn(self, k: FloatArray, phasors: ComplexArray) -> None:
        """Turn `k`, contiguous float32 [cells, kv_heads, head_dim], in place by `phasors` [cells, pairs]."""
        if self.mixing:
            mix(k, self.mixing)
        if self.layout is Layout.NORM:
            pairs = k.view(np.complex64)[..., : len(self.frequencies)]
            np.multiply(pairs, phasors[:, None, :], out=pairs)
        else:
            self._turn_halves(k, phasors[:, None, :])
        if self.mixing:
            mix(k, self.mixing)

    def _turn_halves(self, k: FloatArray, phasors: ComplexArray) -> None:
        half = len(self.frequencies)
        cos, sin = np.ascontiguousarray(phasors.real), np.ascontiguousarray(phasors.imag)
        first, second = k[..., :half], k[..., half : 2 * half]
        crossed = second * sin
        second *= cos
        second += first * sin
        first *= cos
        first -= crossed


def mix(k: FloatArray, run: int) -> None:
    """Multiply each run of `run` numbers (a power of two) by the orthonormal Walsh-Hadamard matrix, its own inverse.

    In place, by sums and differences: a matrix product would start BLAS threads, which wait for busy cores.
    """
    columns = np.ascontiguousarray(k.reshape(-1, run).T)
    half = 1
    while half < run:
        pairs = columns.reshape(run // (2 * half), 2, half, -1)
        low, high = pairs[:, 0], pairs[:, 1]
        difference = low - high
        low += high
        high[...] = difference
        half *= 2
    columns *= np.float32(1 / math.sqrt(run))
    k.reshape(-1, run)[...] = columns.T


def other_ropes(metadata: Mapping[str, str], rope: Rope, path: Path, window_tokens: int) -> list[Rope]:
    """Return what single layers may use instead of `rope`: none at all, or what sliding-window layers use.

    The metadata don't say which layers do, and leave some of their numbers to the architecture: these are guesses, for
    `rotation_check` to choose among. Raises BadModelFile as `rope_of` does.
    """
    name = metadata.get("general.architecture", "")
    sliding = {
        f"{name}.rope.freq_base": metadata.get(f"{name}.rope.freq_base_swa", str(_DEFAULT_BASE)),
        f"{name}.rope.dimension_count": metadata.get(f"{name}.rope.dimension_count_swa", str(rope.rotated)),
    }
    unscaled = {f"{name}.rope.scaling.type": "none"}
    guesses = [
        rope_of({**metadata, **changes}, rope.layout.value, path, window_tokens)
        for changes in (sliding, sliding | unscaled, unscaled)
    ]
    still = replace(rope, frequencies=np.zeros_like(rope.frequencies))
    return [still, *(guess for guess in guesses if isinstance(guess, Rope))]


@dataclass(frozen=True, slots=True)
class _Hparams:
    """The GGUF's numbers under its architecture's name, as llama.cpp's metadata calls give them (all text)."""

    metadata: Mapping[str, str]

    def text(self, key: str) -> str | None:
        return self.metadata.get(f"{self.metadata.get('general.architecture', '')}.{key}")

    def number(self, key: str, default: float) -> float:
        found = self.text(key)
        return default if found is None else float(found)


def rope_of(metadata: Mapping[str, str], rope_type: int, path: Path, window_tokens: int) -> Rope | str:
    """Return the rotation that llama.cpp gives this model's K, or the reason why it can't be known.

    `metadata` and `rope_type` are what llama.cpp says of the loaded model, `path` its GGUF (the first part, when
    split), `window_tokens` the context's `n_ctx_seq`. The context must have been made with llama.cpp's default rope
    parameters. Raises BadModelFile when the file's tensor table can't be read.
    """
    hparams = _Hparams(metadata)
    try:
        return _unknown(hparams, rope_type) or _make_rope(hparams, Layout(rope_type), path, window_tokens)
    except ValueError as error:
        return f"the model's rope metadata can't be read ({error})"


def _unknown(hparams: _Hparams, rope_type: int) -> str | None:
    if rope_type == -1:
        return "the model has no rotary positions"
    if rope_type not in [layout.value for layout in Layout]:
        return "the model's positions have several parts (M-RoPE), which can't be renumbered"
    if hparams.number("attention.kv_lora_rank", 0) > 0:
        return "the model keeps compressed keys (MLA), which hold their positions apart"
    for key in ("rope.scaling.alpha", "attention.compress_rope_freq_base"):
        if hparams.number(key, 0) > 0:
            return f"the model's rope has a parameter that isn't understood ({key})"
    return None


def heads_of(metadata: Mapping[str, str]) -> tuple[int, int] | str:
    """Return how many KV heads a layer has and how many dimensions a K head, or why that isn't one number each."""
    hparams = _Hparams(metadata)
    try:
        heads = hparams.number("attention.head_count", 0)
        kv_heads = hparams.number("attention.head_count_kv", heads)
        head_dim = hparams.number("attention.key_length", hparams.number("embedding_length", 0) // max(heads, 1))
    except ValueError as error:
        return f"the model's layers differ in their heads ({error})"
    if kv_heads < 1 or head_dim < 1:
        return "the model's metadata don't say how many KV heads it has and how wide they are"
    return int(kv_heads), int(head_dim)


def _make_rope(hparams: _Hparams, layout: Layout, path: Path, window_tokens: int) -> Rope | str:
    heads = heads_of(hparams.metadata)
    if isinstance(heads, str):
        return heads
    head_dim = heads[1]
    rotated = int(hparams.number("rope.dimension_count", head_dim))
    if not 0 < rotated <= head_dim or rotated % 2 or head_dim % 2:
        return f"the model says that {rotated} of {head_dim} dimensions turn"
    frequencies = _base_frequencies(hparams, rotated)
    factors = _factors(hparams, path, window_tokens)
    if factors is not None:
        if len(factors) < len(frequencies) or not np.all(factors > 0):
            return f"the model's rope factors don't fit ({len(factors)} for {len(frequencies)} pairs)"
        frequencies /= factors[: len(frequencies)]
    return Rope(_scaled(hparams, frequencies), layout, head_dim)


def _base_frequencies(hparams: _Hparams, rotated: int) -> npt.NDArray[np.float64]:
    base = hparams.number("rope.freq_base", _DEFAULT_BASE)
    if base <= 0:
        raise ValueError(f"rope.freq_base {base}")
    return base ** (-np.arange(0, rotated, 2) / rotated)


def _factors(hparams: _Hparams, path: Path, window_tokens: int) -> npt.NDArray[np.float32] | None:
    """Return what frequencies are divided by: llama3's, or LongRoPE's pick for this window."""
    factors = read_table(path, _ROPE_FACTORS)
    if factors is None:
        longer = window_tokens > _original_window(hparams)
        factors = read_table(path, _ROPE_FACTORS_LONG if longer else _ROPE_FACTORS_SHORT)
    return factors


def picked_factors(metadata: Mapping[str, str], path: Path, window_tokens: int) -> str:
    """Name what `rope_of` takes from the file for this window: only LongRoPE's keys depend on the context's size."""
    if read_table(path, _ROPE_FACTORS_LONG) is None or read_table(path, _ROPE_FACTORS) is not None:
        return "of every window"
    return "long" if window_tokens > _original_window(_Hparams(metadata)) else "short"


def _original_window(hparams: _Hparams) -> float:
    return hparams.number("rope.scaling.original_context_length", hparams.number("context_length", 0))


def _scaled(hparams: _Hparams, frequencies: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    kind = hparams.text("rope.scaling.type") or "linear"
    factor = hparams.number("rope.scaling.factor", hparams.number("rope.scale_linear", 0))
    scale = 1.0 if kind == "none" or factor == 0 else 1.0 / factor
    mix = hparams.number("rope.scaling.yarn_ext_factor", -1.0)
    if mix < 0:
        mix = 1.0 if kind == "yarn" else 0.0
    if mix == 0:
        return frequencies * scale
    ramp = mix * _yarn_ramp(hparams, len(frequencies))
    return frequencies * (scale * (1 - ramp) + ramp)


def _yarn_ramp(hparams: _Hparams, pairs: int) -> npt.NDArray[np.float64]:
    """Return 1 for pairs that turn so fast that they keep their frequency, 0 for those that are slowed down."""
    base = hparams.number("rope.freq_base", _DEFAULT_BASE)
    window, rotated = _original_window(hparams), 2 * pairs

    def pair_with(turns: float) -> float:
        return rotated * math.log(window / (turns * _TURN)) / (2 * math.log(base))

    low = max(0.0, math.floor(pair_with(hparams.number("rope.scaling.yarn_beta_fast", _BETA_FAST))))
    high = min(rotated - 1.0, math.ceil(pair_with(hparams.number("rope.scaling.yarn_beta_slow", _BETA_SLOW))))
    ramp = (np.arange(pairs, dtype=np.float64) - low) / max(0.001, high - low)
    return 1 - np.clip(ramp, 0, 1)
