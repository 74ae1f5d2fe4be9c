"""The tiny model that exactness tests stand on is itself what it claims to be."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gguf")
llama_cpp = pytest.importorskip("llama_cpp")

from tiny_gguf import Shape, write_tiny_gguf  # noqa: E402 - after the skips


@contextmanager
def loaded(path: Path) -> Iterator[Any]:
    """Load with llama.cpp's own API, so that the file is checked without our engine between."""
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
    assert model
    yield model
    llama_cpp.llama_model_free(model)


def tokens_of(model: Any, text: str) -> list[int]:
    raw = text.encode()
    room = (llama_cpp.llama_token * (len(raw) + 8))()
    vocab = llama_cpp.llama_model_get_vocab(model)
    count = llama_cpp.llama_tokenize(vocab, raw, len(raw), room, len(room), False, True)
    return list(room[:count])


def last_logits(model: Any, tokens: list[int], vocabulary: int) -> list[float]:
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_threads, params.n_threads_batch = 256, 256, 1, 1
    context = llama_cpp.llama_init_from_model(model, params)
    assert context
    ids = (llama_cpp.llama_token * len(tokens))(*tokens)
    assert llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(ids, len(tokens))) == 0
    found = llama_cpp.llama_get_logits_ith(context, -1)
    out = list(ctypes.cast(found, ctypes.POINTER(ctypes.c_float))[:vocabulary])
    llama_cpp.llama_free(context)
    return out


def test_the_same_seed_and_shape_give_the_same_file(tmp_path: Path) -> None:
    first, again, other = (
        write_tiny_gguf(tmp_path / name, seed=seed).read_bytes() for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first == again
    assert first != other


SHAPES = [
    Shape(),
    Shape(layers=3, heads=2, kv_heads=1),
    Shape(yarn_factor=4.0),
    Shape(factors="llama3"),
    Shape(architecture="phi3", rotated=8, factors="longrope"),
    Shape(architecture="smollm3", layers=4),
    Shape(architecture="gemma3", layers=6),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_llama_cpp_loads_each_shape_and_computes_finite_varied_logits(tmp_path: Path, shape: Shape) -> None:
    with loaded(write_tiny_gguf(tmp_path / "tiny.gguf", shape=shape)) as model:
        assert llama_cpp.llama_model_n_layer(model) == shape.layers
        logits = last_logits(model, tokens_of(model, "hello there"), 260)
    assert all(abs(value) < 1e4 for value in logits)
    assert len(set(logits)) > 200


def test_yarn_changes_what_a_long_enough_prompt_computes(tmp_path: Path) -> None:
    seen = []
    for factor in (1.0, 4.0):
        with loaded(write_tiny_gguf(tmp_path / f"{factor}", shape=Shape(yarn_factor=factor))) as model:
            seen.append(array("f", last_logits(model, tokens_of(model, "abcdefgh" * 8), 260)))
    assert seen[0] != seen[1]


def test_any_text_becomes_bytes_and_special_tokens_stand_alone(tmp_path: Path) -> None:
    with loaded(write_tiny_gguf(tmp_path / "tiny.gguf")) as model:
        assert tokens_of(model, "é\n") == [0xC3, 0xA9, 0x0A]
        assert tokens_of(model, "<|im_start|>x<|im_end|>") == [257, ord("x"), 258]
