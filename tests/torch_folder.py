"""A tiny GGUF made a Hugging Face folder: the same weights under other names and in another order, and a tokenizer."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tiny_gguf import CHATML, SPECIAL, Shape, byte_tokens, write_tiny_gguf

_NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
Tensors = dict[str, np.ndarray[Any, Any]]


def tiny_tensors(folder: Path, shape: Shape, seed: int = 7) -> Tensors:
    """Return the tiny GGUF's weights as Hugging Face has them."""
    file = write_tiny_gguf(folder / "source.gguf", seed=seed, shape=shape)
    out: Tensors = {}
    for tensor in gguf.GGUFReader(file).tensors:
        parts = tensor.name.split(".")
        if parts[0] == "rope_freqs":
            continue
        name = f"{_NAMES[parts[-2]]}.{parts[-1]}"
        values = np.array(tensor.data)
        if shape.architecture == "llama" and parts[-2] in ("attn_q", "attn_k"):
            values = _neighbours_apart(values, shape.head_dim)
        out[f"model.layers.{parts[1]}.{name}" if parts[0] == "blk" else name] = values
    file.unlink()
    return out


def _neighbours_apart(rows: np.ndarray[Any, Any], head_dim: int) -> np.ndarray[Any, Any]:
    """Undo GGUF's order of Q and K, written down here on purpose: even rows of a head first, then odd ones."""
    heads = [rows[at : at + head_dim] for at in range(0, len(rows), head_dim)]
    return np.concatenate([np.concatenate([head[0::2], head[1::2]]) for head in heads])


def config_of(shape: Shape, **changes: Any) -> dict[str, Any]:
    return {
        "model_type": shape.architecture, "hidden_size": shape.width, "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "intermediate_size": shape.inner,
        "vocab_size": 256 + len(SPECIAL) + 1, "rms_norm_eps": 1e-5, "max_position_embeddings": shape.window,
        "rope_theta": shape.rope_base, "hidden_act": "silu", "tie_word_embeddings": False, "eos_token_id": 258,
        **changes,
    }  # fmt: skip


def write_folder(folder: Path, tensors: Tensors, config: dict[str, Any], *, kind: str = "F32", files: int = 1) -> Path:
    """Write a folder in so many weight files; `kind` is F32 or F16."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    names = sorted(tensors)
    if files == 1:
        write_safetensors(folder / "model.safetensors", tensors, kind)
    else:
        parts = {n: f"model-{number % files + 1:05}-of-{files:05}.safetensors" for number, n in enumerate(names)}
        for part in set(parts.values()):
            write_safetensors(folder / part, {n: tensors[n] for n in names if parts[n] == part}, kind)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": parts}))
    write_tokenizer(folder)
    return folder


def write_safetensors(path: Path, tensors: Tensors, kind: str = "F32") -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    values, at = [], 0
    for name, tensor in tensors.items():
        data = tensor.astype("<f4" if kind == "F32" else "<f2").tobytes()
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [at, at + len(data)]}
        values.append(data)
        at += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(values))


def write_tokenizer(folder: Path) -> None:
    """Write the tiny GGUF's byte-level vocabulary, with its one merge, as a tokenizer.json."""
    vocabulary = {token: number for number, token in enumerate([*byte_tokens(), *SPECIAL, "he"])}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = [
        {"id": 256 + n, "content": text, "special": True, "normalized": False, "single_word": False,
         "lstrip": False, "rstrip": False}
        for n, text in enumerate(SPECIAL)
    ]  # fmt: skip
    (folder / "tokenizer.json").write_text(
        json.dumps({
            "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
            "pre_tokenizer": level, "post_processor": level, "decoder": level,
            "model": {"type": "BPE", "vocab": vocabulary, "merges": ["h e"], "dropout": None, "unk_token": None,
                      "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
                      "byte_fallback": False, "ignore_merges": False},
        })
    )  # fmt: skip
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": SPECIAL[0], "eos_token": {"content": SPECIAL[2]}, "chat_template": CHATML})
    )
