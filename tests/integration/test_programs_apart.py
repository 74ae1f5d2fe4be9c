"""Invariant 4 on llama.cpp: what is dropped, moved and replaced in one sequence leaves another's logits bit-identical.

llama.cpp adds up in the order of its cells, so both runs fill the same cells: one operates, the other only computes.
"""

from __future__ import annotations

from pathlib import Path as FilePath

import pytest

from akashic_daemon.engine.base import BatchItem
from akashic_daemon.types import SequenceId
from tiny_gguf import Shape, write_tiny_gguf

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.model
CALM, BUSY, SCRATCH = (SequenceId(n) for n in range(3))


@pytest.mark.parametrize("yarn", [None, 4.0])
def test_operations_of_one_sequence_leave_anothers_logits_bit_identical(tmp_path: FilePath, yarn: float | None) -> None:
    shape = Shape(layers=2) if yarn is None else Shape(layers=2, yarn_factor=yarn)
    file = write_tiny_gguf(tmp_path / "tiny.gguf", shape=shape)
    (calm, busy), (other_calm, other_busy) = listen(file, operating=True), listen(file, operating=False)
    assert calm == other_calm
    assert busy[0] == other_busy[0]
    assert all(a != b for a, b in zip(busy[1:], other_busy[1:], strict=True)), "the operations did nothing"


def listen(file: FilePath, *, operating: bool) -> tuple[list[bytes], list[bytes]]:
    """Return what both sequences say before and after Drop, Replace and Repos of the busy one."""
    from akashic_daemon.engine.llama_cpp import LlamaCppEngine, LlamaCppOptions

    engine = LlamaCppEngine(
        LlamaCppOptions(
            name="tiny", path=file, kv_type="f32", max_sequences=4, flash_attention="off", kv_tokens=256, threads=1
        )
    )
    calm: list[bytes] = []
    busy: list[bytes] = []

    def ask_both() -> None:
        """Compute one more token of each, in one batch, and take it back."""
        engine.decode([BatchItem(CALM, [9], 24, True, True), BatchItem(BUSY, [9], 40, True, True)])
        calm.append(engine.logits(0).tobytes())
        busy.append(engine.logits(1).tobytes())
        engine.release(CALM, 24)
        engine.release(BUSY, 40)

    try:
        engine.decode([BatchItem(CALM, list(range(10, 34)), 0, True)])
        engine.share(CALM, BUSY, 0, 16)
        engine.decode([BatchItem(BUSY, list(range(50, 70)), 16, True)])
        ask_both()
        if operating:
            engine.release(BUSY, 4, 10)  # Drop, of what both share
        ask_both()
        engine.share(BUSY, SCRATCH, 0, 4)
        engine.decode([BatchItem(SCRATCH, [3, 4], 4, True)])
        if operating:
            engine.share(SCRATCH, BUSY, 4, 6)  # Replace
        ask_both()
        saved = engine.save(BUSY, [(16, 36)])
        engine.release(BUSY, 16, 36)
        engine.load(saved, BUSY, [(17, 37) if operating else (16, 36)])  # Repos
        ask_both()
    finally:
        engine.close()
    return calm, busy
