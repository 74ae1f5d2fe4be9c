"""A real model's logits by the torch engine, llama.cpp and transformers, on the same tokens and the same weights.

PYTHONPATH=daemon:kernels:tests python tests/bench/torch_logits.py --tokens 512 [--json out.json]

The GGUF (SmolLM2 from its package, or --model) is dequantized into an f32 and an f16 GGUF and, for transformers, into folders
of the same numbers. KV is f32 with f32 weights, else f16 (transformers keeps what it computes in: f32). Of each pair: the
largest difference, also as a share of the largest logit, the mean Kullback-Leibler divergence in nats, and how often the
likeliest token is the same. Half of the text is one prefill, the rest goes in steps of 1 and 7 tokens. Runs on CPUs;
transformers is left out, and that is said, where it isn't installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import tempfile
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from akashic_daemon.engine.base import BatchItem
from akashic_daemon.engine.llama_cpp import LlamaCppEngine, LlamaCppOptions
from akashic_daemon.engine.llama_cpp.model_file import embedded_model_path
from akashic_daemon.engine.llama_cpp.vocabulary import LlamaVocabulary
from akashic_daemon.engine.torch_engine import TorchEngine, TorchOptions
from akashic_daemon.engine.torch_engine.source import open_source
from akashic_daemon.types import SequenceId
from torch_folder import write_safetensors

A = SequenceId(0)
SIZES = (1, 7)
Rows = np.ndarray[Any, np.dtype[np.float64]]


def write_plain(source: Path, into: Path, kind: str) -> Path:
    """Write the GGUF again with each matrix as `kind` (f32 or f16), what isn't one as f32; the metadata stay."""
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(into, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        inner = field.types[1] if len(field.types) > 1 else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)
    for tensor in reader.tensors:
        wide = gguf.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, wide.astype(np.float16 if kind == "f16" and wide.ndim > 1 else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return into


def write_folder(source: Path, into: Path) -> Path:
    """Write a GGUF's weights as Hugging Face's Llama has them, in f32."""
    into.mkdir()
    opened = open_source(source)
    shape = opened.architecture
    theta = float(shape.rope.frequencies[1] ** (-shape.head_dim / 2))
    (into / "config.json").write_text(
        json.dumps({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": shape.width,
            "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads, "head_dim": shape.head_dim,
            "num_key_value_heads": shape.kv_heads, "intermediate_size": shape.inner,
            "vocab_size": shape.vocabulary_size, "rms_norm_eps": shape.norm_epsilon,
            "max_position_embeddings": shape.window_tokens, "rope_theta": theta, "hidden_act": "silu",
            "rope_parameters": {"rope_type": "default", "rope_theta": theta}, "tie_word_embeddings": shape.tied,
            "attention_bias": False, "mlp_bias": False,
        })
    )  # fmt: skip
    write_safetensors(into / "model.safetensors", {name: opened.read(name).float().numpy() for name in opened.names})
    return into


def steps_of(tokens: Sequence[int]) -> list[Sequence[int]]:
    """Cut the text: one half at once, then small steps."""
    at = len(tokens) // 2
    steps = [tokens[:at]]
    while at < len(tokens):
        count = SIZES[len(steps) % len(SIZES)]
        steps.append(tokens[at : at + count])
        at += count
    return steps


def by_engine(engine: TorchEngine | LlamaCppEngine, tokens: Sequence[int]) -> Rows:
    out, at = [], 0
    for step in steps_of(tokens):
        engine.decode([BatchItem(A, step, at, logits=True, all_logits=True)])
        out.append(engine.logits(0))
        at += len(step)
    engine.close()
    return np.concatenate(out).astype(np.float64)


def by_transformers(folder: Path, tokens: Sequence[int], attention: str) -> Rows:
    from transformers import AutoModelForCausalLM  # type: ignore[import-not-found, unused-ignore]

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention).eval()
    out, past = [], None
    with torch.inference_mode():
        for step in steps_of(tokens):
            found = model(torch.tensor([step]), past_key_values=past, use_cache=True)
            past = found.past_key_values
            out.append(found.logits[0].numpy())
    return np.concatenate(out).astype(np.float64)


def compared(one: Rows, other: Rows) -> dict[str, float]:
    """Return how far two sets of rows are apart."""
    width = min(one.shape[1], other.shape[1])
    one, other = one[:, :width], other[:, :width]
    logs = [rows - np.logaddexp.reduce(rows, axis=1, keepdims=True) for rows in (one, other)]
    divergence = (np.exp(logs[0]) * (logs[0] - logs[1])).sum(axis=1)
    most = np.abs(one - other).max()
    return {
        "max_abs": float(most),
        "max_relative": float(most / np.abs(one).max()),
        "mean_kl_nats": float(divergence.mean()),
        "top_1_agreement": float((one.argmax(axis=1) == other.argmax(axis=1)).mean()),
    }


def measure(model: Path, kind: str, text: str, count: int, folder: Path) -> dict[str, dict[str, float]]:
    """Return what each pair of the implementations differs by."""
    file = write_plain(model, folder / f"{kind}.gguf", kind)
    vocabulary = LlamaVocabulary(file)
    tokens = vocabulary.tokenize(text, special=False)[:count]
    if len(tokens) < count:
        raise SystemExit(f"the text has {len(tokens)} tokens, fewer than {count}: give a longer --text")
    given = {"window_tokens": count + 64, "kv_tokens": count + 64, "max_sequences": 2}
    kv: Any = "f32" if kind == "f32" else "f16"
    llama = LlamaCppOptions(name="m", path=file, kv_type=kv, flash_attention="off", gpu_layers=0, **given)  # type: ignore[arg-type]
    rows = {
        "torch engine": by_engine(
            TorchEngine(TorchOptions(name="m", path=file, kv_type=kv, device="cpu", **given), vocabulary),  # type: ignore[arg-type]
            tokens,
        ),
        "llama.cpp": by_engine(LlamaCppEngine(llama), tokens),
    }
    if importlib.util.find_spec("transformers") is None:
        print("transformers isn't installed: not compared", flush=True)
    else:
        hf = write_folder(file, folder / f"{kind}-hf")
        rows |= {f"transformers, {way}": by_transformers(hf, tokens, way) for way in ("eager", "sdpa")}
    return {f"{a} / {b}": compared(rows[a], rows[b]) for a, b in combinations(rows, 2)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--text", type=Path, default=Path(__file__).parents[2] / "LICENSE")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--kinds", nargs="+", choices=("f32", "f16"), default=["f32", "f16"])
    parser.add_argument("--json", type=Path)
    wanted = parser.parse_args()
    model = wanted.model or embedded_model_path()
    if model is None:
        raise SystemExit("the embedded model isn't installed; name one with --model")
    found = {}
    with tempfile.TemporaryDirectory() as made:
        for kind in wanted.kinds:
            found[kind] = measure(model, kind, wanted.text.read_text(), wanted.tokens, Path(made))
            for pair, row in found[kind].items():
                print(kind, pair, {name: f"{value:.3g}" for name, value in row.items()}, flush=True)
    if wanted.json:
        wanted.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
