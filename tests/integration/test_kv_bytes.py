"""KV leaves llama.cpp as flat bytes and comes back as it was: anywhere in the cache, in any order of cells, or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("gguf")
pytest.importorskip("llama_cpp")

from akashic_daemon.engine.base import AS_COMPUTED, Q8, STORAGES, BatchItem, PackedRun
from akashic_daemon.engine.llama_cpp import LlamaCppEngine, LlamaCppOptions
from akashic_daemon.errors import EngineError, Unsupported
from akashic_daemon.types import SequenceId
from kv_content import kv_type_of, sorted_by_position
from tiny_gguf import Shape, write_tiny_gguf

pytestmark = pytest.mark.model

CELLS = 192
A, B, C, D = (SequenceId(n) for n in range(4))
TEXT = [17 + (n * n) % 91 for n in range(48)]
MORE = [5, 80, 33]


@dataclass(frozen=True, slots=True)
class Kind:
    """A model and a cache: with flash attention V isn't transposed; gemma3 keeps sliding-window layers apart."""

    kv_type: str = "f32"
    flash_attention: str = "off"
    architecture: str = "llama"

    def __str__(self) -> str:
        return f"{self.architecture}-{self.kv_type}-flash-{self.flash_attention}"


KINDS = [
    Kind(),
    Kind(flash_attention="on"),
    Kind("f16"),
    Kind("f16", "on"),
    Kind("q8_0", "on"),
    Kind(architecture="gemma3"),
    Kind("f16", architecture="gemma3"),
]


def rounding(kind: Kind) -> float:
    """Return what another order of cells may do to logits of this size: all but plain f32 adds up in half precision."""
    return 2e-4 if (kind.kv_type, kind.flash_attention) == ("f32", "off") else 0.02


@contextmanager
def opened(folder: Path, kind: Kind = Kind(), **options: Any) -> Iterator[LlamaCppEngine]:
    shape = Shape(architecture=kind.architecture, width=128, heads=4, kv_heads=2)  # type: ignore[arg-type]
    engine = LlamaCppEngine(
        LlamaCppOptions(
            name="tiny", path=write_tiny_gguf(folder / f"{kind}.gguf", shape=shape), kv_type=kind.kv_type,
            flash_attention=kind.flash_attention, max_sequences=4, threads=1, **{"kv_tokens": CELLS, **options},
        )
    )  # fmt: skip
    try:
        yield engine
    finally:
        engine.close()


@pytest.fixture(params=KINDS, ids=str)
def kind(request: pytest.FixtureRequest) -> Kind:
    found = request.param
    assert isinstance(found, Kind)
    return found


@pytest.fixture
def engine(tmp_path: Path, kind: Kind) -> Iterator[LlamaCppEngine]:
    with opened(tmp_path, kind) as made:
        yield made


def say(
    engine: LlamaCppEngine, sequence: SequenceId, tokens: Sequence[int] = MORE, start: int = len(TEXT)
) -> npt.NDArray[np.float32]:
    engine.decode([BatchItem(sequence, tokens, start, logits=True, all_logits=True)])
    return engine.logits(0)


def exported(
    engine: LlamaCppEngine, sequence: SequenceId, start: int, end: int, storage: str = AS_COMPUTED
) -> memoryview:
    """Return what an export used, as bytes that nobody can write."""
    buffer = bytearray(b"\xee" * (engine.export_bytes(end - start, storage) + 16))
    used = engine.export_cells(sequence, start, end, memoryview(buffer), storage)
    assert buffer[used:] == b"\xee" * (len(buffer) - used), "it wrote past what it says that it used"
    return memoryview(bytes(buffer[:used]))


def in_blocks(engine: LlamaCppEngine, sequence: SequenceId) -> list[tuple[memoryview, int, int]]:
    return [(exported(engine, sequence, *ends), *ends) for ends in ((0, 20), (20, 40), (40, 48))]


def scatter(engine: LlamaCppEngine) -> None:
    """Leave holes of one to three cells all over the first half of the cache, so that new cells come in pieces."""
    engine.decode([BatchItem(D, [40 + n % 7 for n in range(CELLS // 2)], 0, logits=False)])
    at = 0
    for size in [1, 3, 2] * CELLS:
        if at + size >= CELLS // 2:
            break
        engine.release(D, at, at + size)
        at += size + 1 + size % 2


def fill(engine: LlamaCppEngine, sequence: SequenceId) -> int:
    """Compute tokens until fewer than eight cells are free; return how many."""
    for filled in range(0, 2 * CELLS, 8):
        try:
            say(engine, sequence, [9] * 8, filled)
        except EngineError:
            return filled
    raise AssertionError(sequence)


def test_a_sequence_that_was_exported_in_blocks_goes_on_bit_for_bit(engine: LlamaCppEngine) -> None:
    say(engine, A, TEXT, 0)
    blocks = in_blocks(engine, A)
    expected = say(engine, A)
    engine.release(A)
    for data, start, end in blocks:
        engine.import_cells(data, A, start, end)
    assert engine.position_range(A) == (0, len(TEXT) - 1)
    assert say(engine, A).tobytes() == expected.tobytes()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_cells_that_lie_scattered_leave_and_come_back_right(
    engine: LlamaCppEngine, kind: Kind, order: tuple[int, ...]
) -> None:
    scatter(engine)
    expected = say(engine, B, [*TEXT, *MORE], 0)[-len(MORE) :]
    engine.release(B)
    engine.release(D, 0, 40)
    say(engine, A, TEXT, 0)  # in the holes
    blocks = in_blocks(engine, A)
    engine.release(A)
    engine.release(D)
    scatter(engine)
    for number in order:
        data, start, end = blocks[number]
        engine.import_cells(data, B, start, end)
    for again, (data, start, end) in zip(in_blocks(engine, B), blocks, strict=True):
        assert sorted_by_position(engine, again[0]) == sorted_by_position(engine, data), (start, end)
    np.testing.assert_allclose(say(engine, B), expected, rtol=0, atol=rounding(kind))


def test_a_run_may_come_back_at_other_positions_and_its_bytes_stay_as_they_are(
    engine: LlamaCppEngine, kind: Kind
) -> None:
    say(engine, A, TEXT[:16], 0)
    say(engine, A, TEXT[16:], 16)
    data = exported(engine, A, 16, 40)
    before = bytes(data)
    # The same tokens at positions 0..23 after the same run, as Repos would leave them.
    saved = engine.save(A, [(16, 40)])
    engine.load(saved, B, [(0, 24)])
    expected = say(engine, B, MORE, 24)
    engine.import_cells(data, C, 0, 24)
    assert bytes(data) == before
    assert engine.position_range(C) == (0, 23)
    np.testing.assert_allclose(say(engine, C, MORE, 24), expected, rtol=0, atol=rounding(kind))


def test_cells_that_others_share_are_copied_and_no_one_else_changes(engine: LlamaCppEngine, kind: Kind) -> None:
    say(engine, A, TEXT, 0)
    alone = exported(engine, A, 0, len(TEXT))
    expected = say(engine, A)
    engine.release(A, len(TEXT))
    engine.share(A, B, 0, 30)
    engine.share(A, C, 10, 30)
    data = exported(engine, B, 10, 30)
    assert [engine.position_range(s) for s in (A, B, C)] == [(0, 47), (0, 29), (10, 29)]
    engine.release(C)
    engine.import_cells(data, C, 10, 30)
    assert exported(engine, A, 0, len(TEXT)) == alone
    np.testing.assert_allclose(say(engine, A), expected, rtol=0, atol=rounding(kind))
    engine.release(A)
    assert sorted_by_position(engine, exported(engine, C, 10, 30)) == sorted_by_position(engine, data)


def test_a_run_with_a_hole_in_it_is_refused(engine: LlamaCppEngine) -> None:
    say(engine, A, TEXT, 0)
    engine.release(A, 20, 22)
    buffer = memoryview(bytearray(engine.export_bytes(20, AS_COMPUTED)))
    with pytest.raises(EngineError, match="holds 18 of these 20"):
        engine.export_cells(A, 10, 30, buffer, AS_COMPUTED)
    with pytest.raises(EngineError, match="holds 0 of these 20"):
        engine.export_cells(B, 10, 30, buffer, AS_COMPUTED)
    left, right = exported(engine, A, 10, 20), exported(engine, A, 22, 30)
    engine.import_cells(left, B, 10, 20)
    engine.import_cells(right, B, 22, 30)
    assert engine.position_range(B) == (10, 29)


def test_a_buffer_that_is_too_small_is_refused_before_anything_is_written(engine: LlamaCppEngine) -> None:
    say(engine, A, TEXT, 0)
    buffer = bytearray(engine.export_bytes(20, AS_COMPUTED) - 1)
    with pytest.raises(EngineError, match="don't fit"):
        engine.export_cells(A, 10, 30, memoryview(buffer), AS_COMPUTED)
    assert not any(buffer)


def test_where_cells_lack_or_stand_already_nothing_is_added(engine: LlamaCppEngine) -> None:
    say(engine, A, TEXT, 0)
    data = exported(engine, A, 10, 30)
    with pytest.raises(EngineError, match="already"):
        engine.import_cells(data, A, 10, 30)
    engine.release(A, 12, 47)
    with pytest.raises(EngineError, match="already"):
        engine.import_cells(data, A, 10, 30)
    filled = fill(engine, D)
    with pytest.raises(EngineError, match="loading"):
        engine.import_cells(data, B, 10, 30)
    assert engine.position_range(B) is None
    assert engine.position_range(D) == (0, filled - 1)
    assert engine.position_range(A) == (0, 47)
    engine.release(D, filled - 24)
    engine.import_cells(data, B, 10, 30)
    assert engine.position_range(B) == (10, 29)


@pytest.mark.parametrize("at", range(0, 110, 3))
def test_a_changed_byte_in_the_heads_is_refused_or_only_what_the_caller_asked_for_comes(
    tmp_path: Path, at: int
) -> None:
    with opened(tmp_path) as engine:
        say(engine, A, TEXT, 0)
        data = exported(engine, A, 0, 4)
        for value in (0, 1, 77, 255):
            changed = bytearray(data)
            if changed[at] == value:
                continue
            changed[at] = value
            try:
                engine.import_cells(memoryview(changed), B, 0, 4)
            except EngineError:
                assert engine.position_range(B) is None
                continue
            assert engine.position_range(B) == (0, 3)
            engine.release(B)


def test_what_is_cut_longer_or_of_another_shape_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as engine:
        say(engine, A, TEXT, 0)
        data = exported(engine, A, 0, 4)
        for length in [*range(90), len(data) - 1]:
            with pytest.raises(EngineError, match=r"importing KV|reading a saved"):
                engine.import_cells(data[:length], B, 0, 4)
        with pytest.raises(EngineError, match="should take"):
            engine.import_cells(memoryview(bytes(data) + b"x"), B, 0, 4)
        with pytest.raises(EngineError, match="4 cells from position 0"):
            engine.import_cells(data, B, 0, 5)
        assert engine.position_range(B) is None
    others = [Kind("f16"), Kind(flash_attention="on"), Kind(architecture="gemma3")]
    for other in others:
        with opened(tmp_path, other) as engine:
            with pytest.raises(EngineError):
                engine.import_cells(data, B, 0, 4)
            assert engine.position_range(B) is None


def test_an_unknown_storage_is_unsupported(tmp_path: Path) -> None:
    with opened(tmp_path) as engine:
        say(engine, A, TEXT, 0)
        with pytest.raises(Unsupported, match="zip"):
            engine.export_bytes(4, "zip")
        with pytest.raises(Unsupported, match="zip"):
            engine.export_cells(A, 0, 4, memoryview(bytearray(100_000)), "zip")


def test_where_kv_is_quantized_already_q8_is_as_computed(tmp_path: Path) -> None:
    with opened(tmp_path, Kind("q8_0", "on")) as engine:
        say(engine, A, TEXT, 0)
        first, second = (bytes(exported(engine, A, 0, 20, storage)) for storage in STORAGES)
        assert first == second


def test_a_model_whose_keys_turn_in_an_unknown_way_imports_only_where_it_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from akashic_daemon.engine.llama_cpp import engine as module

    monkeypatch.setattr(module, "rope_of", lambda *_: "its rope is of no known kind")
    with opened(tmp_path) as engine:
        say(engine, A, TEXT, 0)
        data = exported(engine, A, 10, 30)
        engine.import_cells(data, B, 10, 30)
        with pytest.raises(Unsupported, match="no known kind"):
            engine.import_cells(data, C, 11, 31)
        assert engine.position_range(C) is None


def difference(engine: LlamaCppEngine, one: memoryview, other: memoryview) -> float:
    """Return the largest difference between values, of the largest value."""
    kind = np.float16 if kv_type_of(one) == "f16" else np.float32
    before, after = (
        np.frombuffer(b"".join(sorted_by_position(engine, data)), kind).astype(np.float64) for data in (one, other)
    )
    return float(np.abs(before - after).max() / np.abs(before).max())


@pytest.mark.parametrize("kind", [k for k in KINDS if k.kv_type != "q8_0"], ids=str)
def test_q8_takes_half_the_room_or_less_and_what_comes_back_is_near(engine: LlamaCppEngine, kind: Kind) -> None:
    scatter(engine)
    say(engine, A, TEXT, 0)
    whole = exported(engine, A, 0, 48)
    expected = say(engine, A)
    runs = [PackedRun(exported(engine, A, *ends, Q8), *ends) for ends in ((0, 20), (20, 40), (40, 48))]
    assert sum(len(run.data) for run in runs) < {"f16": 0.66, "f32": 0.36}[kind.kv_type] * len(whole)
    engine.release(A)
    engine.import_runs(runs, B)
    assert 0 < difference(engine, whole, exported(engine, B, 0, 48)) < 0.005
    found = say(engine, B)
    assert np.abs(found - expected).max() < 0.05 * np.abs(expected).max()
    again = [bytes(exported(engine, B, run.start, run.end, Q8)) for run in runs]
    engine.release(B)
    engine.import_runs(
        [PackedRun(memoryview(data), run.start, run.end) for data, run in zip(again, runs, strict=True)], B
    )
    assert difference(engine, whole, exported(engine, B, 0, 48)) < 0.01, "a second time adds little"


def test_runs_of_both_storages_come_back_together_some_at_other_positions(engine: LlamaCppEngine, kind: Kind) -> None:
    say(engine, A, TEXT, 0)
    for storage in STORAGES:
        runs = [
            PackedRun(exported(engine, A, 8, 20), 8, 20),
            PackedRun(exported(engine, A, 0, 8, storage), 0, 8),
            PackedRun(exported(engine, A, 30, 48, storage), 20, 38),
        ]
        for run in runs:
            engine.import_cells(run.data, B, run.start, run.end)
        engine.import_runs(runs, C)
        one, together = (sorted_by_position(engine, exported(engine, s, 0, 38)) for s in (B, C))
        assert one == together
        np.testing.assert_allclose(say(engine, C, MORE, 38), say(engine, B, MORE, 38), rtol=0, atol=rounding(kind))
        engine.release(B)
        engine.release(C)


def test_of_runs_of_which_one_is_wrong_none_comes(engine: LlamaCppEngine) -> None:
    say(engine, A, TEXT, 0)
    right = PackedRun(exported(engine, A, 0, 8), 0, 8)
    later = exported(engine, A, 8, 20)
    for wrong in (
        PackedRun(later[:-1], 8, 20),
        PackedRun(later, 7, 19),  # over the first
        PackedRun(later, 8, 21),
        PackedRun(memoryview(b"x" * len(later)), 8, 20),
    ):
        with pytest.raises(EngineError):
            engine.import_runs([right, wrong], B)
        assert engine.position_range(B) is None
    engine.import_cells(later, B, 8, 20)
    with pytest.raises(EngineError, match="already"):
        engine.import_runs([right, PackedRun(later, 19, 31)], B)
    assert engine.position_range(B) == (8, 19)
    engine.import_runs([], B)
    engine.import_runs([right], B)
    assert engine.position_range(B) == (0, 19)


@pytest.mark.parametrize("at", range(0, 120, 3))
def test_a_changed_byte_of_a_q8_export_is_refused_or_changes_values_only(tmp_path: Path, at: int) -> None:
    with opened(tmp_path) as engine:
        say(engine, A, TEXT, 0)
        data = exported(engine, A, 0, 4, Q8)
        for value in (0, 77, 255):
            changed = bytearray(data)
            changed[at] = value
            try:
                engine.import_cells(memoryview(changed), B, 0, 4)
            except EngineError:
                assert engine.position_range(B) is None
                continue
            assert engine.position_range(B) == (0, 3)
            engine.release(B)


def test_of_long_runs_that_do_not_all_fit_none_stays(engine: LlamaCppEngine) -> None:
    say(engine, A, [30 + n % 60 for n in range(140)], 0)
    runs = [PackedRun(exported(engine, A, *ends), *ends) for ends in ((0, 70), (70, 140))]
    engine.decode([BatchItem(B, [1, 2, 3], 200, logits=False)])
    with pytest.raises(EngineError, match="loading"):
        engine.import_runs(runs, B)
    assert engine.position_range(B) == (200, 202)
    engine.import_runs(runs[1:], B)
    assert engine.position_range(B) == (70, 202)
    engine.release(A)
    engine.import_runs(runs[:1], B)
    assert sorted_by_position(engine, exported(engine, B, 0, 70)) == sorted_by_position(engine, runs[0].data)


def test_many_short_runs_come_back_in_several_groups(engine: LlamaCppEngine) -> None:
    tokens = [30 + n % 60 for n in range(100)]
    say(engine, A, tokens, 0)
    whole = sorted_by_position(engine, exported(engine, A, 0, 100))
    runs = [PackedRun(exported(engine, A, at, at + 10), at, at + 10) for at in range(0, 100, 10)]
    long = PackedRun(exported(engine, A, 0, 70), 100, 170)
    engine.release(A)
    engine.import_runs([*runs[5:], long, *runs[:5]], B)
    assert sorted_by_position(engine, exported(engine, B, 0, 100)) == whole
    assert engine.position_range(B) == (0, 169)
