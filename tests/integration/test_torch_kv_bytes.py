"""KV leaves the torch engine as flat bytes and comes back as it was, anywhere, or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("llama_cpp")
pytest.importorskip("gguf")

from akashic_daemon.engine.base import AS_COMPUTED, Q8, BatchItem, PackedRun
from akashic_daemon.engine.llama_cpp.vocabulary import LlamaVocabulary
from akashic_daemon.engine.torch_engine import TorchEngine, TorchOptions
from akashic_daemon.errors import EngineError, Unsupported
from akashic_daemon.types import SequenceId
from tiny_gguf import write_tiny_gguf

pytestmark = pytest.mark.model

A, B, C = (SequenceId(n) for n in range(3))
TEXT = [17 + (n * n) % 91 for n in range(48)]
MORE = [5, 80, 33]
ROUNDING = {1: 2.0**-7, 2: 2.0**-10, 4: 2.0**-22}
"""A rounding of KV, by the bytes of a value."""


@pytest.fixture(params=["f16", "f32", "q8_0"])
def engine(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TorchEngine]:
    file = write_tiny_gguf(tmp_path / "tiny.gguf")
    options = TorchOptions(
        name="tiny", path=file, kv_type=request.param, max_sequences=4, kv_tokens=160, page_tokens=16, threads=1,
        device="cpu",
    )  # fmt: skip
    made = TorchEngine(options, LlamaVocabulary(file))
    yield made
    made.close()


def say(engine: TorchEngine, sequence: SequenceId, tokens: Sequence[int] = MORE, start: int = len(TEXT)) -> Any:
    engine.decode([BatchItem(sequence, tokens, start, logits=True, all_logits=True)])
    return engine.logits(0)


def exported(engine: TorchEngine, sequence: SequenceId, start: int, end: int) -> memoryview:
    room = bytearray(engine.export_bytes(end - start, AS_COMPUTED) + 5)
    used = engine.export_cells(sequence, start, end, memoryview(room), AS_COMPUTED)
    return memoryview(bytes(room[:used]))


def test_a_sequence_that_was_exported_in_blocks_goes_on_bit_for_bit(engine: TorchEngine) -> None:
    say(engine, A, TEXT, 0)
    blocks = [(0, 20), (20, 33), (33, 48)]
    data = [exported(engine, A, *block) for block in blocks]
    expected = say(engine, A)
    engine.release(A)
    for run, (start, end) in zip(data, blocks, strict=True):
        engine.import_cells(run, B, start, end)
    assert np.array_equal(say(engine, B), expected)
    engine.release(B)
    engine.import_runs([PackedRun(d, *block) for d, block in zip(data[::-1], blocks[::-1], strict=True)], C)
    assert np.array_equal(say(engine, C), expected)


def test_cells_that_come_to_lie_in_other_slots_are_turned(engine: TorchEngine) -> None:
    """Bound: turning rounds K once more, which changes logits by no more than a few roundings of the KV type."""
    say(engine, A, TEXT, 0)
    data = exported(engine, A, 0, 20), exported(engine, A, 20, 48)
    expected = say(engine, A)
    engine.release(A)
    say(engine, A, TEXT[:7], 0)  # its page's seventh slot is where the import begins
    engine.import_cells(data[1], A, 20, 48)
    engine.release(A, 0, 7)
    assert int(engine.kv.views(A)[0, 1]) == 7
    engine.import_cells(data[0], A, 0, 20)
    found = say(engine, A)
    rounding = ROUNDING[engine.kv.pool.dtype.itemsize]
    assert np.abs(found - expected).max() <= 8 * rounding * np.abs(expected).max()
    assert not np.array_equal(found, expected), "nothing was turned: the test shows nothing"


def test_a_run_may_come_back_at_other_positions(engine: TorchEngine) -> None:
    """Only distances count: everything moved by 30 gives the same logits, but for the rounding of the KV type."""
    say(engine, A, TEXT, 0)
    data = exported(engine, A, 0, 48)
    expected = say(engine, A)
    engine.release(A)
    engine.import_cells(data, B, 30, 78)
    found = say(engine, B, MORE, 78)
    rounding = ROUNDING[engine.kv.pool.dtype.itemsize]
    assert np.abs(found - expected).max() <= 8 * rounding * np.abs(expected).max()


def test_what_cant_be_exported_or_imported_changes_nothing(engine: TorchEngine) -> None:
    say(engine, A, TEXT, 0)
    data = exported(engine, A, 0, 48)
    with pytest.raises(EngineError, match="it holds 48 of them"):
        exported(engine, A, 0, 50)
    with pytest.raises(EngineError, match="are there"):
        engine.export_cells(A, 0, 48, memoryview(bytearray(64)), AS_COMPUTED)
    with pytest.raises(EngineError, match="already"):
        engine.import_cells(data, A, 20, 68)
    with pytest.raises(EngineError, match="same positions"):
        engine.import_runs([PackedRun(data, 60, 108), PackedRun(data, 100, 148)], A)
    with pytest.raises(EngineError, match="importing KV"):
        engine.import_cells(data[:-1], B, 0, 48)
    with pytest.raises(EngineError, match="importing KV"):
        engine.import_cells(data, B, 0, 47)
    with pytest.raises(Unsupported, match="q8"):
        engine.export_bytes(4, Q8)
    say(engine, B, TEXT, 0)
    say(engine, C, TEXT, 0)
    with pytest.raises(EngineError, match="no room"):
        engine.import_runs([PackedRun(data, 1000 + 48 * n, 1048 + 48 * n) for n in range(9)], C)
    engine.kv.check()
    assert [engine.position_range(s) for s in (A, B, C)] == [(0, 47)] * 3


def test_a_slot_past_its_page_is_refused(engine: TorchEngine) -> None:
    say(engine, A, TEXT, 0)
    data = bytearray(exported(engine, A, 0, 48))
    data[32:34] = (16).to_bytes(2, "little")
    with pytest.raises(EngineError, match="slot 16"):
        engine.import_cells(memoryview(data), B, 0, 48)
