"""Rotary positions of the Llama family: the angle of each pair per position, with its scalings.

The engine turns halves: dimension i with i + n/2. Weights made for neighbours (Llama in GGUF) are reordered on loading.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from akashic_daemon.errors import ModelError, Unsupported

Doubles = npt.NDArray[np.float64]
_TURN = 2 * math.pi
_KNOWN = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True, eq=False)
class Rope:
    """`frequencies[i]` is the angle of pair i per position; Q and K are multiplied by `attention_scale` too (YaRN)."""

    frequencies: Doubles
    attention_scale: float = 1.0

    def described(self) -> str:
        """Return all that it is, for a fingerprint."""
        return f"{self.frequencies.tobytes().hex()}:{self.attention_scale!r}"


@dataclass(frozen=True, slots=True)
class _Yarn:
    factor: float
    original_tokens: float
    beta_fast: float
    beta_slow: float
    truncate: bool = True


def hf_rope(config: Mapping[str, Any], head_dim: int, where: str) -> Rope:
    """Read a config.json's rope, in its old form (`rope_theta`, `rope_scaling`) or its new one (`rope_parameters`)."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(scaling, Mapping):
        raise ModelError(f"{where}: its rope parameters are no table", hint="get it again")
    kind = str(scaling.get("rope_type", scaling.get("type", "default")))
    _known(kind, where)
    if float(config.get("partial_rotary_factor", scaling.get("partial_rotary_factor", 1.0))) != 1.0:
        raise Unsupported(f"{where}: only a part of each head turns", hint="use the llama.cpp engine with a GGUF")
    base = _positive(config.get("rope_theta", scaling.get("rope_theta", 10000.0)), "rope_theta", where)
    own = _base_frequencies(base, head_dim)
    if kind == "default":
        return Rope(own)
    factor = _positive(scaling.get("factor"), "the rope's factor", where)
    original = scaling.get("original_max_position_embeddings") or config.get("max_position_embeddings")
    original_tokens = _positive(original, "original_max_position_embeddings", where)
    if kind == "linear":
        return Rope(own / factor)
    if kind == "llama3":
        low = _positive(scaling.get("low_freq_factor"), "low_freq_factor", where)
        high = _positive(scaling.get("high_freq_factor"), "high_freq_factor", where)
        return Rope(_llama3(own, factor, low, high, original_tokens))
    for key in ("mscale", "mscale_all_dim"):
        if scaling.get(key):
            raise Unsupported(f"{where}: YaRN with {key} is not known", hint="use the llama.cpp engine with a GGUF")
    fast, slow = float(scaling.get("beta_fast") or 32), float(scaling.get("beta_slow") or 1)
    yarn = _Yarn(factor, original_tokens, fast, slow, bool(scaling.get("truncate", True)))
    scale = scaling.get("attention_factor")
    return Rope(_yarn(own, base, yarn), _yarn_scale(factor) if scale is None else float(scale))


def gguf_rope(own: Mapping[str, Any], head_dim: int, factors: Any, where: str) -> Rope:
    """Read a GGUF's rope from the values under its architecture's name; `factors` divide frequencies (Llama 3)."""
    kind = str(own.get("rope.scaling.type", "none"))
    kind = "default" if kind == "none" else kind
    _known(kind, where)
    turned = int(own.get("rope.dimension_count", head_dim))
    if turned != head_dim:
        raise Unsupported(
            f"{where}: {turned} of a head's {head_dim} dimensions turn; all must", hint="use the llama.cpp engine"
        )
    base = _positive(own.get("rope.freq_base", 10000.0), "rope.freq_base", where)
    frequencies = _base_frequencies(base, head_dim)
    if factors is not None:
        if len(factors) != len(frequencies) or not np.all(np.asarray(factors) > 0):
            raise ModelError(f"{where}: its rope factors don't fit ({len(factors)})", hint="get it again")
        frequencies = frequencies / np.asarray(factors, np.float64)
    if kind == "default":
        return Rope(frequencies)
    factor = _positive(own.get("rope.scaling.factor"), "rope.scaling.factor", where)
    if kind == "linear":
        return Rope(frequencies / factor)
    original = own.get("rope.scaling.original_context_length") or own.get("context_length")
    original_tokens = _positive(original, "rope.scaling.original_context_length", where)
    magnitude = float(own.get("rope.scaling.attn_factor", 1.0))
    yarn = _Yarn(factor, original_tokens, 32.0, 1.0)
    return Rope(_yarn(frequencies, base, yarn), magnitude * _yarn_scale(factor))


def _known(kind: str, where: str) -> None:
    if kind not in _KNOWN:
        raise Unsupported(
            f"{where}: its rope type {kind!r} is not known; {', '.join(_KNOWN)} are",
            hint="use the llama.cpp engine with a GGUF",
        )


def _positive(value: Any, what: str, where: str) -> float:
    if not isinstance(value, int | float) or not value > 0:
        raise ModelError(f"{where}: {what} is {value!r}, not a positive number", hint="get the model again")
    return float(value)


def _base_frequencies(base: float, head_dim: int) -> Doubles:
    return np.asarray(base ** (-np.arange(0, head_dim, 2) / head_dim), np.float64)


def _llama3(own: Doubles, factor: float, low: float, high: float, original_tokens: float) -> Doubles:
    """Slow pairs are slowed by `factor`, fast ones kept, those between blended."""
    turns = original_tokens * own / _TURN
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return np.asarray(own * kept + own / factor * (1 - kept))


def _yarn(own: Doubles, base: float, yarn: _Yarn) -> Doubles:
    pairs = len(own)

    def pair_with(turns: float) -> float:
        return pairs * math.log(yarn.original_tokens / (turns * _TURN)) / math.log(base)

    low, high = pair_with(yarn.beta_fast), pair_with(yarn.beta_slow)
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    slowed: Doubles = np.clip((np.arange(pairs) - low) / max(0.001, high - low), 0, 1)
    return np.asarray(own * (1 - slowed) + own / yarn.factor * slowed)


def _yarn_scale(factor: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * math.log(factor) + 1.0
