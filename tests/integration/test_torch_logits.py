"""What the torch engine says equals llama.cpp's and a float64 oracle's logits, for each kind of model that it knows.

Bound: llama.cpp on the same f32 weights is an independent implementation in the same type. The torch engine's error against
float64 is at most twice llama.cpp's, plus a band of one rounding of the largest logit for each token seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("llama_cpp")
pytest.importorskip("gguf")
import gguf

from akashic_daemon.engine.base import BatchItem
from akashic_daemon.engine.llama_cpp import LlamaCppEngine, LlamaCppOptions
from akashic_daemon.engine.llama_cpp.model_file import embedded_model_path
from akashic_daemon.engine.llama_cpp.vocabulary import LlamaVocabulary
from akashic_daemon.engine.torch_engine import TorchEngine, TorchOptions, forward
from akashic_daemon.engine.torch_engine.tokenizer import HfTokenizer
from akashic_daemon.program.path import PathBuilder
from akashic_daemon.types import SequenceId
from llama_oracle import logits as oracle_logits
from tiny_gguf import Shape, write_tiny_gguf
from torch_folder import config_of, tiny_tensors, write_folder

pytestmark = pytest.mark.model

EPSILON = float(np.finfo(np.float32).eps)
A = SequenceId(0)
SHAPES = {
    "llama": Shape(),
    "llama, llama3 factors": Shape(factors="llama3", rope_base=500000.0),
    "llama, linear": Shape(linear_factor=4.0),
    "llama, yarn": Shape(yarn_factor=4.0),
    "llama, no gqa": Shape(kv_heads=4),
    "qwen2, biases": Shape(architecture="qwen2", layers=3),
    "qwen3, normed heads": Shape(architecture="qwen3", layers=3),
}
TOKENS = [(7 * n * n + 3 * n) % 256 for n in range(60)]


def torch_engine(path: Path, **options: Any) -> TorchEngine:
    vocabulary = HfTokenizer(path) if path.is_dir() else LlamaVocabulary(path)
    given = {"kv_type": "f32", "kv_tokens": 512, "window_tokens": 512, "max_sequences": 4, "threads": 1, **options}
    return TorchEngine(TorchOptions(name="tiny", path=path, device="cpu", **given), vocabulary)


def llama_engine(path: Path, **options: Any) -> LlamaCppEngine:
    given = {"kv_type": "f32", "flash_attention": "off", **options}
    return LlamaCppEngine(
        LlamaCppOptions(
            name="tiny", path=path, kv_tokens=512, window_tokens=512, max_sequences=4, threads=1, **given
        )
    )  # fmt: skip


def say(engine: TorchEngine | LlamaCppEngine, tokens: Sequence[int], steps: Sequence[int] = (40, 1, 1, 18)) -> Any:
    """Compute the tokens in steps of these sizes; return all logits."""
    out, at = [], 0
    for count in steps:
        engine.decode([BatchItem(A, tokens[at : at + count], at, logits=True, all_logits=True)])
        out.append(engine.logits(0))
        at += count
    assert at == len(tokens)
    engine.release(A)
    return np.concatenate(out)


@pytest.mark.parametrize("few_rows", [False, True], ids=["torch's layers", "few_rows"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_logits_are_as_near_to_float64_as_llama_cpps(
    tmp_path: Path, shape: Shape, few_rows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With few_rows, steps of single tokens take the way that they take on a GPU, through the kernel's reference."""
    monkeypatch.setattr(forward, "serves_few", lambda x: few_rows and len(x) == 1)
    file = write_tiny_gguf(tmp_path / "tiny.gguf", shape=shape)
    ours, theirs = torch_engine(file), llama_engine(file)
    try:
        path = PathBuilder()
        path.append(TOKENS)
        exact = oracle_logits(file, path.build())
        found, reference = say(ours, TOKENS), say(theirs, TOKENS)
        band = EPSILON * np.abs(exact).max() * len(TOKENS)
        error, known = np.abs(found - exact).max(), np.abs(reference - exact).max()
        assert error <= 2 * known + band, (error, known, band)
    finally:
        ours.close()
        theirs.close()


@pytest.mark.parametrize("kind", ["F32", "F16"])
@pytest.mark.parametrize("files", [1, 3])
def test_a_folder_of_safetensors_computes_what_its_gguf_does(tmp_path: Path, kind: str, files: int) -> None:
    shape = Shape(layers=3)
    tensors = tiny_tensors(tmp_path, shape)
    if kind == "F16":
        tensors = {name: values.astype(np.float16).astype(np.float32) for name, values in tensors.items()}
    whole = write_folder(tmp_path / "whole", tensors, config_of(shape))
    parts = write_folder(tmp_path / "parts", tensors, config_of(shape), kind=kind, files=files)
    expected, found = torch_engine(whole), torch_engine(parts)
    if kind == "F32":
        gguf_engine = torch_engine(write_tiny_gguf(tmp_path / "tiny.gguf", shape=shape))
        assert np.array_equal(say(gguf_engine, TOKENS), say(expected, TOKENS))
    assert np.array_equal(say(expected, TOKENS), say(found, TOKENS))


def test_llama3s_scaling_in_config_json_is_what_its_formula_says(tmp_path: Path) -> None:
    """The factors that llama.cpp's converter writes into rope_freqs.weight, worked out here by themselves."""
    from akashic_daemon.engine.torch_engine.architecture import from_config

    scaling = {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    config = config_of(Shape(width=512, window=131072, rope_base=500000.0), rope_scaling=scaling)
    found = from_config(config, "it").rope.frequencies
    for pair, frequency in enumerate(found):
        own = 500000.0 ** (-pair / 64)
        wavelength = 2 * np.pi / own
        if wavelength < 8192 / 4:
            expected = own
        elif wavelength > 8192:
            expected = own / 8
        else:
            smooth = (8192 / wavelength - 1) / 3
            expected = (1 - smooth) * own / 8 + smooth * own
        assert frequency == pytest.approx(expected, rel=1e-12)


def test_eight_bits_lose_what_llama_cpps_eight_bits_lose(tmp_path: Path) -> None:
    """Heads of 32 numbers with a scale each: what llama.cpp's q8_0 keeps too, so the errors may differ by chance only."""
    file = write_tiny_gguf(tmp_path / "tiny.gguf", shape=Shape(width=128))
    ours, theirs = torch_engine(file, kv_type="q8_0"), llama_engine(file, kv_type="q8_0", flash_attention="on")
    exact = torch_engine(file)
    try:
        wanted = say(exact, TOKENS)
        found, reference = say(ours, TOKENS), say(theirs, TOKENS)
        error, known = (float(np.sqrt(np.mean((x - wanted) ** 2))) for x in (found, reference))
        assert 0 < error <= 2 * known, (error, known)
        assert ours.model.kv_bytes_per_token < exact.model.kv_bytes_per_token / 3
        assert ours.model.fingerprint != exact.model.fingerprint
    finally:
        for engine in (ours, theirs, exact):
            engine.close()


def widened(source: Path, path: Path, layers: int) -> Path:
    """Write the first layers of a GGUF with all its weights dequantized to f32."""
    reader, writer = gguf.GGUFReader(source), gguf.GGUFWriter(path, "llama")
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = layers if name == "llama.block_count" else field.contents()
        inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, field.types[0], inner)
    for tensor in reader.tensors:
        if not tensor.name.startswith("blk.") or int(tensor.name.split(".")[1]) < layers:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            writer.add_tensor(tensor.name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_smollm2_says_what_llama_cpp_says(tmp_path: Path) -> None:
    """On its real weights, dequantized: within four times what another batch shape changes in llama.cpp itself."""
    source = embedded_model_path()
    if source is None:
        pytest.skip("the embedded model isn't installed")
    file = widened(source, tmp_path / "smollm2.gguf", layers=6)
    ours, theirs = torch_engine(file), llama_engine(file)
    try:
        text = "The cache is a place where one keeps what others will ask for again. def f(x):\n    return x + 1\n"
        tokens = ours.tokenize(text, special=True)
        assert tokens == theirs.tokenize(text, special=True)
        count = len(tokens)
        found, expected = say(ours, tokens, [count]), say(theirs, tokens, [count])
        noise = np.abs(say(theirs, tokens, [1] * count) - expected).max()
        scale = np.abs(expected).max()
        assert np.abs(found - expected).max() <= 4 * max(noise, EPSILON * scale), (noise, scale)
        assert np.array_equal(found.argmax(axis=1), expected.argmax(axis=1))
    finally:
        ours.close()
        theirs.close()
