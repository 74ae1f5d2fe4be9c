"""Segment-batch attention: a prompt with operations in it, and holes of one, computed in a single step, equal the oracle's."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("llama_cpp")

from akashic_daemon.cache.index import RadixIndex
from akashic_daemon.engine.base import BatchItem, SegmentBatch
from akashic_daemon.engine.llama_cpp.vocabulary import LlamaVocabulary
from akashic_daemon.engine.torch_engine import TorchEngine, TorchOptions
from akashic_daemon.errors import EngineError
from akashic_daemon.program.path import Drop, Path, PathBuilder
from akashic_daemon.types import SequenceId
from llama_oracle import logits as oracle_logits
from paths_strategy import random_path
from programs_driver import CLOSE
from tiny_gguf import Shape, write_tiny_gguf

pytestmark = pytest.mark.model

A, B = SequenceId(0), SequenceId(1)
CELLS = 512


@pytest.fixture
def file(tmp_path: FilePath) -> FilePath:
    return write_tiny_gguf(tmp_path / "tiny.gguf", shape=Shape(layers=3))


def engine(file: FilePath, **more: Any) -> TorchEngine:
    given: dict[str, Any] = {"kv_tokens": CELLS, "max_sequences": 8, "page_tokens": 16, "spare_pages": 1, **more}
    options = TorchOptions(name="tiny", path=file, kv_type="f32", threads=1, device="cpu", **given)
    return TorchEngine(options, LlamaVocabulary(file))


class Walk:
    """Walks one path through the index; pieces without logits are deferred."""

    def __init__(self, engine: TorchEngine, index: RadixIndex, path: Path) -> None:
        self.key = index.ops.key(path)
        self.engine, self.index = engine, index
        self.sequence, self.at = index.start(self.key, len(self.key) - 1)
        self.deferred = 0

    def step(self, most: int = 1000) -> Any:
        """Go on by one piece; return the last token's logits at the end."""
        work = self.index.advance(self.sequence, self.key, len(self.key) - 1)
        assert work is not None
        end = min(work.end, work.start + most)
        tokens: array[int] = self.key[work.start : end]
        assert self.index.make_room(len(tokens))
        item = BatchItem(work.sequence, tokens, work.position, logits=end == len(self.key))
        if item.logits:
            self.engine.decode([item])
        else:
            self.engine.defer(item)
            self.deferred += 1
        self.index.extend(self.sequence, tokens)
        return self.engine.logits(0)[-1] if item.logits else None

    def to_end(self) -> Any:
        while (found := self.step()) is None:
            pass
        self.index.finish(self.sequence)
        return found


def counted(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that each forward pass appends its number of rows to."""
    rows: list[int] = []
    compute: Callable[[Any], Any] = engine._compute

    def counting(step: Any) -> Any:
        rows.append(len(step.tokens))
        return compute(step)

    monkeypatch.setattr(engine, "_compute", counting)
    return rows


def off(found: Any, expected: Any) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("more", [{}, {"sparse_blocks": 64, "gpu_kv_tokens": 2048}], ids=["on the device", "in RAM"])
@pytest.mark.parametrize("seed", range(3))
def test_a_program_computed_in_one_step_gives_the_oracles_logits(
    file: FilePath, seed: int, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, one = random.Random(seed), engine(file, **more)
    rows, deferred = counted(one, monkeypatch), 0
    index = RadixIndex(one, cells_total=CELLS, sequences_total=8)
    for _ in range(12):
        path = random_path(chance, steps=7, vocabulary=200, longest=7)
        walk = Walk(one, index, path)
        before = len(rows)
        assert off(walk.to_end(), oracle_logits(file, path)[-1]) < CLOSE
        assert len(rows) == before + 1, "not in one step"
        deferred += walk.deferred
        one.kv.check()
        index.check()
        if chance.random() < 0.5:
            index.make_room(CELLS - index.cells_free + chance.randrange(index.cells_used + 1) // 2)
    assert deferred > 12, "hardly anything was deferred: the test shows nothing"


def test_holes_of_a_dropped_history_are_recovered_in_one_step(file: FilePath, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = PathBuilder()
    for part in range(6):
        builder.append([(31 * part + 7 * n) % 200 for n in range(20)])
        if part:
            builder.apply(Drop(((20 * part - 10, 20 * part),)))
    builder.append([1, 2, 3])
    path, one = builder.build(), engine(file)
    rows = counted(one, monkeypatch)
    index = RadixIndex(one, cells_total=CELLS, sequences_total=8)
    first = Walk(one, index, path).to_end()
    index.make_room(CELLS)
    assert index.cells_used == 0
    again = Walk(one, index, path)
    assert off(again.to_end(), first) < CLOSE
    assert again.deferred >= 5
    assert rows == [123, 123]


def test_sequences_that_are_deferred_side_by_side_dont_meet(file: FilePath) -> None:
    chance, one = random.Random(9), engine(file)
    index = RadixIndex(one, cells_total=CELLS, sequences_total=8)
    for _ in range(6):
        paths = [random_path(chance, steps=6, vocabulary=200, longest=7) for _ in range(3)]
        walks = [Walk(one, index, path) for path in paths]
        left = dict(enumerate(walks))
        while left:
            number = chance.choice(sorted(left))
            found = left[number].step(chance.randint(1, 6))
            if found is not None:
                assert off(found, oracle_logits(file, paths[number])[-1]) < CLOSE
                index.finish(left.pop(number).sequence)
            one.kv.check()


def test_what_is_dropped_before_it_is_computed_still_serves_those_that_saw_it(file: FilePath) -> None:
    """Its page is let go of by all, and may not be written to by what comes after."""
    deferring, plain = engine(file), engine(file)
    old, new = [3 * n % 200 for n in range(16)], [5 * n % 200 for n in range(16)]
    for one, add in ((deferring, deferring.defer), (plain, lambda item: plain.decode([item]))):
        add(BatchItem(A, old, 0, logits=False))
        add(BatchItem(A, [7], 16, logits=False))
        one.release(A, 0, 16)
        add(BatchItem(B, new, 0, logits=False))
        one.decode([BatchItem(A, [8], 17, logits=True)])
    assert off(deferring.logits(0), plain.logits(0)) < CLOSE


def test_full_pages_are_packed_only_after_what_waits_is_computed(
    file: FilePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = engine(file, kv_tokens=64, page_tokens=16)
    rows = counted(one, monkeypatch)
    for n, sequence in enumerate((A, B)):
        one.defer(BatchItem(sequence, [n + t for t in range(32)], 0, logits=False))
        one.release(sequence, 3, 30)
    one.defer(BatchItem(A, list(range(40)), 32, logits=False))
    assert one.kv.packed_cells
    assert rows == [64]
    one.kv.check()


def test_exported_cells_are_computed_first(file: FilePath) -> None:
    deferring, plain = engine(file), engine(file)
    deferring.defer(BatchItem(A, list(range(20)), 0, logits=False))
    plain.decode([BatchItem(A, list(range(20)), 0, logits=True)])
    rooms = []
    for one in (deferring, plain):
        room = bytearray(one.export_bytes(20, "as_computed"))
        one.export_cells(A, 0, 20, memoryview(room), "as_computed")
        rooms.append(room)
    assert rooms[0] == rooms[1]


def test_a_failed_step_forgets_what_waited_and_the_engine_goes_on(
    file: FilePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = engine(file)
    assert isinstance(one, SegmentBatch)
    one.defer(BatchItem(A, list(range(20)), 0, logits=False))

    def fails(step: Any) -> Any:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as broken:
        broken.setattr(one, "_compute", fails)
        with pytest.raises(EngineError, match="out of memory"):
            one.decode([BatchItem(A, [1], 20, logits=True)])
    one.release(A)
    one.kv.check()
    one.decode([BatchItem(A, [1, 2, 3], 0, logits=True)])
    assert one.kv.cells_held() == 3


def test_what_failed_while_cells_were_exported_is_told_to_the_next_step(
    file: FilePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = engine(file)
    one.defer(BatchItem(A, list(range(20)), 0, logits=False))

    def fails(step: Any) -> Any:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as broken:
        broken.setattr(one, "_compute", fails)
        with pytest.raises(EngineError, match="out of memory"):
            one.export_cells(A, 0, 20, memoryview(bytearray(one.export_bytes(20, "as_computed"))), "as_computed")
    with pytest.raises(EngineError, match="out of memory"):
        one.decode([BatchItem(A, [1], 20, logits=True)])
    one.release(A)
    one.decode([BatchItem(A, [1], 0, logits=True)])


def test_what_failed_while_a_step_took_its_cells_is_told_once(file: FilePath, monkeypatch: pytest.MonkeyPatch) -> None:
    one = engine(file, kv_tokens=64, page_tokens=16)
    for n, sequence in enumerate((A, B)):
        one.defer(BatchItem(sequence, [n + t for t in range(32)], 0, logits=False))
        one.release(sequence, 3, 30)

    def fails(step: Any) -> Any:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as broken:
        broken.setattr(one, "_compute", fails)
        with pytest.raises(EngineError, match="computing 64 tokens: out of memory"):
            one.decode([BatchItem(A, list(range(40)), 32, logits=True)])
    for sequence in (A, B):
        one.release(sequence)
    assert one.kv.cells_held() == 0
    one.decode([BatchItem(A, list(range(40)), 0, logits=True)])
