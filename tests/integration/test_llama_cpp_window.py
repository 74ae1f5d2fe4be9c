"""Sliding-window models: a cell outside its sequence's window is another's to share, and nobody may overwrite it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gguf")
pytest.importorskip("llama_cpp")

from akashic_daemon.engine.base import BatchItem, FloatArray
from akashic_daemon.engine.llama_cpp import LlamaCppEngine, LlamaCppOptions
from akashic_daemon.types import SequenceId
from tiny_gguf import Shape, write_tiny_gguf

pytestmark = pytest.mark.model

TEXT = [17 + (n * n) % 91 for n in range(900)]
FIRST, OTHER, SHARER, FILLER = (SequenceId(n) for n in range(4))


def shared_continuation(path: Path, *, with_other: bool) -> FloatArray:
    """Return the logits of tokens that go on from the middle of a long sequence's prefix."""
    engine = LlamaCppEngine(
        LlamaCppOptions(
            "tiny", path, kv_type="f32", flash_attention="off", kv_tokens=1024, max_sequences=6, threads=1, batch_tokens=512
        )
    )  # fmt: skip

    def compute(sequence: SequenceId, tokens: list[int], start: int) -> FloatArray:
        for at in range(0, len(tokens), 128):
            engine.decode([BatchItem(sequence, tokens[at : at + 128], start + at, True, all_logits=True)])
        return engine.logits(0)

    try:
        compute(FILLER, TEXT[:50], 0)
        compute(FIRST, TEXT[:600], 0)
        engine.release(FILLER)
        if with_other:
            compute(OTHER, TEXT[100:220], 0)
        engine.share(FIRST, SHARER, 0, 300)
        return compute(SHARER, TEXT[300:310], 300)
    finally:
        engine.close()


def test_what_another_computes_takes_no_cell_that_may_still_be_shared(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "window.gguf", shape=Shape(architecture="gemma3", width=128, layers=7))
    alone, beside = (shared_continuation(path, with_other=other) for other in (False, True))
    scale = float(np.abs(alone).max())
    assert float(np.abs(alone - beside).max()) <= 1e-4 * scale, "f32's last bits, as cells land elsewhere"


def test_a_window_model_says_that_it_has_fewer_sequences(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "window.gguf", shape=Shape(architecture="gemma3"))
    engine = LlamaCppEngine(LlamaCppOptions("tiny", path, kv_tokens=512, max_sequences=128, threads=1))
    try:
        assert engine.capabilities.max_sequences == 112
        assert any("112 branches" in warning for warning in engine.warnings)
    finally:
        engine.close()
