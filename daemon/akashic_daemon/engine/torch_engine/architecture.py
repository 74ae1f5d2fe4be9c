"""What a model is made of, from a Hugging Face config.json or a GGUF's metadata: numbers only, no weights.

What isn't known for certain to be computed right is refused by name: an architecture, a rope type, an activation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from akashic_daemon.engine.torch_engine.rope import Rope, gguf_rope, hf_rope
from akashic_daemon.errors import ModelError, Unsupported

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")
"""Names as config.json's `model_type` has them; in GGUFs, mistral and SmolLM2 are llama."""
_HINT = f"the torch engine knows {', '.join(ARCHITECTURES)}; use the llama.cpp engine with a GGUF"
_MOST_TOKENS = 1 << 24


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder of the Llama family. Heads of Q share those of K and V in equal groups.

    sliding_window: the longest context in which full attention is what the model does, 0 where it always is.
    qk_norm: each head of Q and K is normed before it is turned (Qwen3).
    """

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocabulary_size: int
    norm_epsilon: float
    window_tokens: int
    tied: bool
    rope: Rope
    sliding_window: int = 0
    qk_norm: bool = False

    def kv_bytes_per_token(self, value_bytes: int) -> int:
        """Bytes of K and V that a token takes in all layers; values of one byte have a scale of four a head."""
        scale_bytes = 4 if value_bytes == 1 else 0
        return 2 * self.layers * self.kv_heads * (self.head_dim * value_bytes + scale_bytes)

    @property
    def parameters(self) -> int:
        """Numbers in the weights, norms and biases left out."""
        attention = self.width * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        embeddings = self.vocabulary_size * self.width * (1 if self.tied else 2)
        return embeddings + self.layers * (attention + 3 * self.width * self.inner)


def from_config(config: Mapping[str, Any], where: str) -> Architecture:
    """Read a config.json. Raises Unsupported for what isn't known, ModelError for what lacks or can't be."""
    name = str(config.get("model_type", ""))
    _known(name, where)
    if config.get("hidden_act", "silu") != "silu":
        raise Unsupported(f"{where}: the activation {config['hidden_act']!r} is not known", hint=_HINT)
    if config.get("quantization_config"):
        raise Unsupported(
            f"{where}: its weights are quantized ({_kind_of(config['quantization_config'])})",
            hint="get the unquantized weights, or a GGUF",
        )
    number = _Numbers(config, where)
    heads, width = number("num_attention_heads"), number("hidden_size")
    head_dim = number("head_dim", width // heads)
    return _checked(
        Architecture(
            name=name,
            layers=number("num_hidden_layers"),
            width=width,
            heads=heads,
            kv_heads=number("num_key_value_heads", heads),
            head_dim=head_dim,
            inner=number("intermediate_size"),
            vocabulary_size=number("vocab_size"),
            norm_epsilon=float(config.get("rms_norm_eps") or 1e-6),
            window_tokens=number("max_position_embeddings"),
            tied=bool(config.get("tie_word_embeddings", False)),
            rope=hf_rope(config, head_dim, where),
            sliding_window=_sliding_window(config, name),
            qk_norm=name == "qwen3",
        ),
        where,
    )


def _kind_of(quantization: Any) -> str:
    return str(quantization.get("quant_method", "unknown")) if isinstance(quantization, Mapping) else "unknown"


def _sliding_window(config: Mapping[str, Any], name: str) -> int:
    if name in ("qwen2", "qwen3") and not config.get("use_sliding_window", False):
        return 0
    return int(config.get("sliding_window") or 0)


def from_gguf(
    metadata: Mapping[str, Any], factors: Any, *, tied: bool, vocabulary_size: int, where: str
) -> Architecture:
    """Read a GGUF's metadata. `factors` are the values of rope_freqs.weight or None. Raises as `from_config`."""
    name = str(metadata.get("general.architecture", ""))
    _known(name, where)
    own = {key.removeprefix(f"{name}."): value for key, value in metadata.items() if key.startswith(f"{name}.")}
    number = _Numbers(own, where)
    heads, width = number("attention.head_count"), number("embedding_length")
    head_dim = number("attention.key_length", width // heads)
    if number("attention.value_length", head_dim) != head_dim:
        raise Unsupported(f"{where}: its heads of K and V differ in width", hint=_HINT)
    return _checked(
        Architecture(
            name=name,
            layers=number("block_count"),
            width=width,
            heads=heads,
            kv_heads=number("attention.head_count_kv", heads),
            head_dim=head_dim,
            inner=number("feed_forward_length"),
            vocabulary_size=vocabulary_size,
            norm_epsilon=float(own.get("attention.layer_norm_rms_epsilon", 1e-5)),
            window_tokens=number("context_length"),
            tied=tied,
            rope=gguf_rope(own, head_dim, factors, where),
            sliding_window=int(own.get("attention.sliding_window", 0)),
            qk_norm=name == "qwen3",
        ),
        where,
    )


def _known(name: str, where: str) -> None:
    if name not in ARCHITECTURES:
        raise Unsupported(f"{where}: its architecture {name or 'has no name, and'!r} is not known", hint=_HINT)


def _checked(found: Architecture, where: str) -> Architecture:
    if found.heads % found.kv_heads:
        raise ModelError(f"{where}: {found.heads} heads can't share {found.kv_heads} KV heads", hint="get it again")
    if not 16 <= found.head_dim <= 256 or found.head_dim % 8:
        raise Unsupported(f"{where}: heads of {found.head_dim} dimensions are not known", hint=_HINT)
    if found.window_tokens > _MOST_TOKENS:
        raise ModelError(f"{where}: it says that it serves {found.window_tokens:,} tokens", hint="get it again")
    return found


class _Numbers:
    """Positive whole numbers of a table, each named when it lacks."""

    def __init__(self, table: Mapping[str, Any], where: str) -> None:
        self._table = table
        self._where = where

    def __call__(self, key: str, default: int = 0) -> int:
        value = self._table.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or value <= 0:
            raise ModelError(f"{self._where}: its {key} is {value!r}, not a positive number", hint="get it again")
        return value
