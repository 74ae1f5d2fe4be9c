"""The shape of a model, as far as its speed depends on it: from a header's plain values, or by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from akashic_daemon.errors import UsageError
from akashic_daemon.planner.formats import bytes_per_value


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder with gated feed-forward layers and grouped attention.

    weight_bytes_known: bytes that a decode step reads of the weights, where a file says; else they follow from `weights`.
    file_bytes: bytes that the weights take in memory, where a file says.
    """

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    feed_forward: int
    vocabulary: int
    window_tokens: int
    tied: bool = False
    weights: str = "bf16"
    weight_bytes_known: int = 0
    file_bytes: int = 0

    @property
    def body_parameters(self) -> int:
        """Parameters that every token is multiplied with."""
        attention = self.width * self.head_width * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.width * self.feed_forward)

    @property
    def head_parameters(self) -> int:
        """Parameters that only tokens whose successor is asked for are multiplied with."""
        return self.width * self.vocabulary

    @property
    def parameters(self) -> int:
        """All parameters but the norms'."""
        return self.body_parameters + self.head_parameters * (1 if self.tied else 2)

    @property
    def step_weight_bytes(self) -> float:
        """Bytes of weights that one decode step reads, whatever its batch."""
        known = self.weight_bytes_known
        return known or (self.body_parameters + self.head_parameters) * bytes_per_value(self.weights)

    @property
    def resident_weight_bytes(self) -> float:
        """Bytes of memory that the weights take."""
        return self.file_bytes or self.parameters * bytes_per_value(self.weights)

    def kv_bytes_per_token(self, kv_format: str) -> float:
        """Return what a token's keys and values take in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_width * bytes_per_value(kv_format)

    def attention_flops(self, queries: float, keys: float) -> float:
        """Return what `queries` tokens cost that attend to `keys` tokens each."""
        return 4.0 * self.layers * self.heads * self.head_width * queries * keys

    def quantised(self, weights: str) -> ModelShape:
        """Return the model with its weights in another format."""
        bytes_per_value(weights)
        return replace(self, weights=weights.lower(), weight_bytes_known=0, file_bytes=0)


NAMED = {
    shape.name: shape
    for shape in (
        ModelShape("smollm2-135m", 30, 576, 9, 3, 64, 1536, 49152, 8192, tied=True),
        ModelShape("llama-3.2-1b", 16, 2048, 32, 8, 64, 8192, 128256, 131072, tied=True),
        ModelShape("llama-3.2-3b", 28, 3072, 24, 8, 128, 8192, 128256, 131072, tied=True),
        ModelShape("llama-3.1-8b", 32, 4096, 32, 8, 128, 14336, 128256, 131072),
        ModelShape("llama-3.1-70b", 80, 8192, 64, 8, 128, 28672, 128256, 131072),
        ModelShape("llama-2-7b", 32, 4096, 32, 32, 128, 11008, 32000, 4096),
        ModelShape("mistral-7b", 32, 4096, 32, 8, 128, 14336, 32768, 32768),
        ModelShape("qwen2.5-7b", 28, 3584, 28, 4, 128, 18944, 152064, 131072),
        ModelShape("qwen3-4b", 36, 2560, 32, 8, 128, 9728, 151936, 40960, tied=True),
        ModelShape("qwen3-8b", 36, 4096, 32, 8, 128, 12288, 151936, 40960),
        ModelShape("qwen3-32b", 64, 5120, 64, 8, 128, 25600, 151936, 40960),
    )
}


def named(name: str) -> ModelShape:
    """Return a shape by name. Raises UsageError."""
    found = NAMED.get(name.lower())
    if found is None:
        raise UsageError(
            f"planning for the model {name!r}: no such file, and no shape of that name is known",
            hint=f"name a GGUF, a Hugging Face folder or config.json, or one of {', '.join(NAMED)}",
        )
    return found


def from_gguf(name: str, metadata: Mapping[str, str], vocabulary: int, step_bytes: int, file_bytes: int) -> ModelShape:
    """Return the shape that a GGUF's metadata describe. step_bytes: of the tensors that a step reads. Raises UsageError."""
    kind = metadata.get("general.architecture", "")

    def value(key: str, default: int | None = None) -> int:
        return _number(name, metadata, f"{kind}.{key}", default)

    width, heads = value("embedding_length"), value("attention.head_count")
    return _checked(
        ModelShape(
            name,
            value("block_count"),
            width,
            heads,
            value("attention.head_count_kv", heads),
            value("attention.key_length", width // max(heads, 1)),
            value("feed_forward_length"),
            vocabulary or value("vocab_size"),
            value("context_length"),
            tied=True,
            weights="f16",
            weight_bytes_known=step_bytes,
            file_bytes=file_bytes,
        )
    )


def from_config(name: str, config: Mapping[str, str]) -> ModelShape:
    """Return the shape that a Hugging Face config.json describes. Raises UsageError."""

    def value(key: str, default: int | None = None) -> int:
        return _number(name, config, key, default)

    width, heads = value("hidden_size"), value("num_attention_heads")
    return _checked(
        ModelShape(
            name,
            value("num_hidden_layers"),
            width,
            heads,
            value("num_key_value_heads", heads),
            value("head_dim", width // max(heads, 1)),
            value("intermediate_size"),
            value("vocab_size"),
            value("max_position_embeddings"),
            tied=str(config.get("tie_word_embeddings", "")).lower() == "true",
        )
    )


def _checked(shape: ModelShape) -> ModelShape:
    for field in ("layers", "width", "heads", "kv_heads", "head_width", "feed_forward", "vocabulary"):
        if getattr(shape, field) < 1:
            raise UsageError(f"planning for the model {shape.name}: its {field} is {getattr(shape, field)}")
    return shape


def _number(name: str, values: Mapping[str, str], key: str, default: int | None) -> int:
    text = values.get(key)
    if text is None or text == "None":
        if default is None:
            raise UsageError(
                f"planning for the model {name}: its description has no {key}",
                hint="mixtures of experts and other families can't be planned yet; name a shape",
            )
        return default
    try:
        return int(text)
    except ValueError as error:
        raise UsageError(
            f"planning for the model {name}: {key} is {text!r}, no whole number",
            hint="models whose layers differ can't be planned; name a shape",
        ) from error
