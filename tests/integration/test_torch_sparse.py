"""Sparse decode on the torch engine: exact when it may read everything, and right about what it leaves out when it may not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("llama_cpp")
pytest.importorskip("gguf")
import torch

from akashic_daemon.engine.base import BatchItem
from akashic_daemon.engine.llama_cpp.vocabulary import LlamaVocabulary
from akashic_daemon.engine.torch_engine import TorchEngine, TorchOptions, loading
from akashic_daemon.engine.torch_engine.sizes import Types
from akashic_daemon.types import SequenceId
from programs_driver import CLOSE
from tiny_gguf import Shape, write_tiny_gguf
from torch_programs import TorchPrograms

pytestmark = pytest.mark.model

A, B = SequenceId(0), SequenceId(1)
PAGE = 16
TEXT = [(7 * n * n + 3 * n) % 256 for n in range(PAGE * 12)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_tiny_gguf(tmp_path / "tiny.gguf", shape=Shape(layers=3))


@pytest.fixture
def sparse(file: Path) -> Iterator[TorchEngine]:
    made = engine(file, 1)
    yield made
    made.close()


def engine(file: Path, blocks: int) -> TorchEngine:
    options = TorchOptions(
        name="tiny", path=file, kv_type="f32", max_sequences=4, kv_tokens=1024, page_tokens=PAGE, threads=1,
        device="cpu", sparse_blocks=blocks,
    )  # fmt: skip
    return TorchEngine(options, LlamaVocabulary(file))


def say(engine: TorchEngine, sequence: SequenceId, start: int, tokens: list[int]) -> Any:
    """Compute the tokens one by one, as decoding does."""
    out = []
    for n, token in enumerate(tokens):
        engine.decode([BatchItem(sequence, [token], start + n, logits=True)])
        out.append(engine.logits(0)[0])
    return np.array(out)


def prefill(engine: TorchEngine) -> None:
    engine.decode([BatchItem(A, TEXT, 0, logits=True)])


@pytest.mark.parametrize("seed", range(2))
def test_programs_that_may_read_every_page_give_the_oracles_logits(tmp_path: Path, seed: int) -> None:
    programs = TorchPrograms(write_tiny_gguf(tmp_path / "tiny.gguf", seed=seed), seed, PAGE, sparse_blocks=64)
    pool = programs.engine.kv.pool
    try:
        while programs.done < 60:
            programs.act()
            _check_bounds(programs.engine)
        assert programs.worst < CLOSE
        assert programs.engine.kv.packed_cells, "no page was packed: the test shows nothing"
        assert pool.bounds
    finally:
        programs.engine.close()


def _check_bounds(engine: Any) -> None:
    """Each key that anything sees lies within its page's bounds."""
    pool = engine.kv.pool
    live = engine.kv.table.live_slots(engine.kv._holders())
    for k, bounds in zip(pool.k, pool.bounds, strict=True):
        keys = k.permute(0, 2, 1, 3)[live]
        pages = np.nonzero(live)[0]
        assert bool((keys >= bounds[pages, :, 0]).all())
        assert bool((keys <= bounds[pages, :, 1]).all())


def test_few_pages_are_read_and_the_answer_says_so(file: Path, sparse: TorchEngine) -> None:
    dense = engine(file, 0)
    prefill(dense)
    prefill(sparse)
    exact, found = say(dense, A, len(TEXT), [5, 6, 7]), say(sparse, A, len(TEXT), [5, 6, 7])
    assert sparse.capabilities.sparse_attention
    assert not dense.capabilities.sparse_attention
    assert np.isfinite(found).all()
    assert np.abs(found - exact).max() > 100 * CLOSE * np.abs(exact).max(), (
        "everything was read: the test shows nothing"
    )
    assert dense.model.fingerprint != sparse.model.fingerprint


def test_what_is_chosen_moves_with_the_text(sparse: TorchEngine) -> None:
    """Bounds and choices know no positions: the same text far away gives the same answers."""
    prefill(sparse)
    saved = sparse.save(A, [(0, len(TEXT))])
    sparse.load(saved, B, [(50_000, 50_000 + len(TEXT))])
    near, far = say(sparse, A, len(TEXT), [5, 6, 7]), say(sparse, B, 50_000 + len(TEXT), [5, 6, 7])
    assert np.abs(near - far).max() <= CLOSE * np.abs(near).max()


def test_imported_pages_are_chosen_as_they_were_before(sparse: TorchEngine) -> None:
    prefill(sparse)
    room = bytearray(sparse.export_bytes(len(TEXT), "as_computed"))
    used = sparse.export_cells(A, 0, len(TEXT), memoryview(room), "as_computed")
    expected = say(sparse, A, len(TEXT), [5, 6, 7])
    sparse.release(A)
    sparse.import_cells(memoryview(room)[:used], B, 0, len(TEXT))
    _check_bounds(sparse)
    assert np.abs(say(sparse, B, len(TEXT), [5, 6, 7]) - expected).max() <= CLOSE * np.abs(expected).max()


@pytest.mark.parametrize("more", [{}, {"gpu_kv_tokens": 2048}], ids=["on the device", "in RAM"])
def test_16_bit_weights_choose_among_8_bit_keys(
    file: Path, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bounds of 8-bit keys are wider than what such weights compute in; GPUs compute in 16 bits, CPUs don't."""
    monkeypatch.setattr(loading, "_types", lambda *_: Types(torch.bfloat16, torch.int8))
    found = []
    for blocks in (0, 2, 64):
        options = TorchOptions(
            name="tiny", path=file, kv_tokens=1024, window_tokens=1024, page_tokens=PAGE, threads=1, device="cpu",
            max_sequences=4, sparse_blocks=blocks, **more,
        )  # fmt: skip
        one = TorchEngine(options, LlamaVocabulary(file))
        prefill(one)
        found.append(say(one, A, len(TEXT), [5, 6, 7]))
        one.close()
    dense, few, every = found
    assert np.array_equal(dense, every) or np.allclose(dense, every, rtol=0.02, atol=0.02 * np.abs(dense).max())
    assert not np.array_equal(dense, few)
