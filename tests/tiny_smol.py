"""A random Llama of few weights that speaks SmolLM2's tokenizer and template: a real model's texts and KV, hardly any computing."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from akashic_daemon.engine.llama_cpp.model_file import embedded_model_path
from akashic_daemon.paths import ensure_private_dir, find_paths
from akashic_daemon.store.database import open_database
from akashic_daemon.store.models import ModelRegistry

NAME = "tinysmol"
WIDTH = 64
HEADS = 16
HEAD_DIM = 64
INNER = 128


def write_tiny_smol(path: Path, source: Path, *, layers: int = 2, seed: int = 1, window: int = 8192) -> Path:
    """Write it with the tokenizer of the GGUF `source`. KV takes 4 KiB a token and layer; a step costs next to nothing."""
    random = np.random.default_rng(seed)
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(window)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    for name, field in reader.fields.items():
        if not name.startswith("tokenizer."):
            continue
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(name, field.contents())
        else:
            writer.add_key_value(name, field.contents(), field.types[0])
    tokens = len(reader.fields["tokenizer.ggml.tokens"].contents())
    writer.add_vocab_size(tokens)

    def matrix(name: str, out: int, into: int) -> None:
        values = random.standard_normal((out, into)) / np.sqrt(into)
        writer.add_tensor(f"{name}.weight", values.astype(np.float32))

    def ones(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))

    matrix("token_embd", tokens, WIDTH)
    ones("output_norm")
    matrix("output", tokens, WIDTH)
    for layer in range(layers):
        at = f"blk.{layer}."
        ones(at + "attn_norm")
        ones(at + "ffn_norm")
        for name in ("attn_q", "attn_k", "attn_v"):
            matrix(at + name, HEADS * HEAD_DIM, WIDTH)
        matrix(at + "attn_output", WIDTH, HEADS * HEAD_DIM)
        matrix(at + "ffn_gate", INNER, WIDTH)
        matrix(at + "ffn_up", INNER, WIDTH)
        matrix(at + "ffn_down", WIDTH, INNER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def registered_tiny_smol(home: Path) -> str:
    """Write one into a daemon's home, register it there and return its name."""
    source = embedded_model_path()
    assert source is not None, "the default model, whose tokenizer it speaks, isn't installed"
    paths = find_paths({"AKASHIC_HOME": str(home)})
    ensure_private_dir(paths.store_dir)
    file = write_tiny_smol(home / f"{NAME}.gguf", source)
    database, about = open_database(paths.database), file.stat()
    try:
        ModelRegistry(database).add(NAME, str(file), about.st_size, about.st_mtime_ns, False)
    finally:
        database.close()
    return NAME
