"""A tiny Llama in GGUF with random f32 weights and a byte-level vocabulary: real code paths, no downloaded model."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

_LAYERS, _WIDTH, _HEADS, _KV_HEADS, _INNER, _WINDOW = 2, 64, 4, 2, 128, 1024
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


def write_tiny_gguf(path: Path, *, seed: int = 7) -> Path:
    """Write the model; the same seed gives the same weights."""
    random = np.random.default_rng(seed)
    tokens = [*byte_tokens(), *SPECIAL, "he"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(_WINDOW)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(_INNER)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_KV_HEADS)
    writer.add_rope_dimension_count(_WIDTH // _HEADS)
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
        writer.add_tensor(f"{name}.weight", np.ones(_WIDTH, np.float32))

    kv_width = _WIDTH // _HEADS * _KV_HEADS
    matrix("token_embd", len(tokens), _WIDTH)
    ones("output_norm")
    matrix("output", len(tokens), _WIDTH)
    for layer in range(_LAYERS):
        at = f"blk.{layer}."
        ones(at + "attn_norm")
        ones(at + "ffn_norm")
        for name, out, into in (
            ("attn_q", _WIDTH, _WIDTH),
            ("attn_k", kv_width, _WIDTH),
            ("attn_v", kv_width, _WIDTH),
            ("attn_output", _WIDTH, _WIDTH),
            ("ffn_gate", _INNER, _WIDTH),
            ("ffn_up", _INNER, _WIDTH),
            ("ffn_down", _WIDTH, _INNER),
        ):
            matrix(at + name, out, into)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
