"""A tiny Llama in GGUF with random f32 weights and a byte-level vocabulary: real code paths, no downloaded model.

As architecture `phi3` it turns halves instead of neighbours, may turn only some dimensions, and has LongRoPE's two tables.
As `smollm3` each fourth layer has no rope; as `gemma3` all but each sixth attend to a sliding window, with another rope.
As `qwen2` Q, K and V have biases; as `qwen3` the heads of Q and K are normed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import gguf
import numpy as np


@dataclass(frozen=True, slots=True)
class Shape:
    """What the tiny model looks like.

    `yarn_factor` above 1 stretches the rope by YaRN from `window / yarn_factor`, `linear_factor` linearly. `rotated` is
    how many dimensions of a head turn, 0 all (phi3). `factors` writes tables that divide the rope's frequencies: `llama3`
    one for every window, `longrope` (phi3) one for windows up to a quarter of `window` and one for longer ones.
    """

    layers: int = 2
    width: int = 64
    heads: int = 4
    kv_heads: int = 2
    inner: int = 128
    window: int = 1024
    yarn_factor: float = 1.0
    linear_factor: float = 1.0
    rope_base: float = 10000.0
    architecture: Literal["llama", "phi3", "smollm3", "gemma3", "qwen2", "qwen3"] = "llama"
    rotated: int = 0
    factors: Literal["", "llama3", "longrope"] = ""

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    @property
    def turning(self) -> int:
        return self.rotated or self.head_dim


SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokens() -> list[str]:
    """Return the printable stand-ins that byte-level BPE uses for the 256 bytes, in byte order."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(spare)) for b in range(256)]


def write_tiny_gguf(path: Path, *, seed: int = 7, shape: Shape = Shape()) -> Path:
    """Write the model; the same seed and shape give the same file."""
    random = np.random.default_rng(seed)
    tokens = [*byte_tokens(), *SPECIAL, "he"]
    writer = gguf.GGUFWriter(path, shape.architecture)
    writer.add_name("tiny")
    writer.add_context_length(shape.window)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    _add_rope(writer, shape)
    if shape.architecture == "qwen3":
        writer.add_key_length(shape.head_dim)
        writer.add_value_length(shape.head_dim)
    if shape.architecture == "gemma3":
        writer.add_sliding_window(shape.window // 4)
        writer.add_key_length(shape.head_dim)
        writer.add_value_length(shape.head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if t in SPECIAL else gguf.TokenType.NORMAL for t in tokens])
    writer.add_token_merges(["h e"])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(258)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHATML)

    def matrix(name: str, out: int, into: int) -> None:
        values = random.standard_normal((out, into)) / np.sqrt(into)
        writer.add_tensor(f"{name}.weight", values.astype(np.float32))

    def some(name: str, width: int, mean: float) -> None:
        writer.add_tensor(name, (mean + 0.2 * random.standard_normal(width)).astype(np.float32))

    def ones(name: str, width: int = shape.width) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(width, np.float32))

    matrix("token_embd", len(tokens), shape.width)
    ones("output_norm")
    matrix("output", len(tokens), shape.width)
    for layer in range(shape.layers):
        at = f"blk.{layer}."
        ones(at + "attn_norm")
        ones(at + "ffn_norm")
        if shape.architecture == "gemma3":
            ones(at + "attn_q_norm", shape.head_dim)
            ones(at + "attn_k_norm", shape.head_dim)
            ones(at + "post_attention_norm")
            ones(at + "post_ffw_norm")
        if shape.architecture == "qwen3":
            some(at + "attn_q_norm.weight", shape.head_dim, 1.0)
            some(at + "attn_k_norm.weight", shape.head_dim, 1.0)
        for name, out, into in _matrices(shape):
            matrix(at + name, out, into)
            if shape.architecture == "qwen2" and name in ("attn_q", "attn_k", "attn_v"):
                some(f"{at}{name}.bias", out, 0.0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _matrices(shape: Shape) -> list[tuple[str, int, int]]:
    """Return a layer's matrices: name, rows, columns. phi3 keeps Q, K and V in one, and gate and up in another."""
    width, inner, kv_width = shape.width, shape.inner, shape.head_dim * shape.kv_heads
    if shape.architecture == "phi3":
        first = [("attn_qkv", width + 2 * kv_width, width)]
        last = [("ffn_up", 2 * inner, width)]
    else:
        first = [("attn_q", width, width), ("attn_k", kv_width, width), ("attn_v", kv_width, width)]
        last = [("ffn_gate", inner, width), ("ffn_up", inner, width)]
    return [*first, ("attn_output", width, width), *last, ("ffn_down", width, inner)]


def _add_rope(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_rope_dimension_count(shape.turning)
    writer.add_rope_freq_base(shape.rope_base)
    if shape.yarn_factor > 1:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(shape.yarn_factor)
        writer.add_rope_scaling_orig_ctx_len(int(shape.window / shape.yarn_factor))
    elif shape.linear_factor > 1:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(shape.linear_factor)
    if shape.factors == "llama3":
        writer.add_tensor("rope_freqs.weight", _table(shape, 8.0))
    elif shape.factors == "longrope":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
        writer.add_rope_scaling_orig_ctx_len(shape.window // 4)
        writer.add_rope_scaling_attn_factors(1.19)
        writer.add_tensor("rope_factors_short.weight", _table(shape, 1.3))
        writer.add_tensor("rope_factors_long.weight", _table(shape, 16.0))


def _table(shape: Shape, last: float) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.linspace(1.0, last, shape.turning // 2, dtype=np.float32)
