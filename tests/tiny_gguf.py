"""A tiny Llama in GGUF with random f32 weights and a byte-level vocabulary: real code paths, no downloaded model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np


@dataclass(frozen=True, slots=True)
class Shape:
    """What the tiny model looks like. `yarn_factor` above 1 stretches the rope by YaRN from `window / yarn_factor`."""

    layers: int = 2
    width: int = 64
    heads: int = 4
    kv_heads: int = 2
    inner: int = 128
    window: int = 1024
    yarn_factor: float = 1.0


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
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(shape.window)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_dimension_count(shape.width // shape.heads)
    if shape.yarn_factor > 1:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(shape.yarn_factor)
        writer.add_rope_scaling_orig_ctx_len(int(shape.window / shape.yarn_factor))
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

    def ones(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(shape.width, np.float32))

    kv_width = shape.width // shape.heads * shape.kv_heads
    matrix("token_embd", len(tokens), shape.width)
    ones("output_norm")
    matrix("output", len(tokens), shape.width)
    for layer in range(shape.layers):
        at = f"blk.{layer}."
        ones(at + "attn_norm")
        ones(at + "ffn_norm")
        for name, out, into in (
            ("attn_q", shape.width, shape.width),
            ("attn_k", kv_width, shape.width),
            ("attn_v", kv_width, shape.width),
            ("attn_output", shape.width, shape.width),
            ("ffn_gate", shape.inner, shape.width),
            ("ffn_up", shape.inner, shape.width),
            ("ffn_down", shape.width, shape.inner),
        ):
            matrix(at + name, out, into)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
