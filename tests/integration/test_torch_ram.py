"""KV in RAM on the torch engine: the same answers as with all of it on the device, however few tiles stand there."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("llama_cpp")
pytest.importorskip("gguf")

from akashic_daemon.engine.base import BatchItem
from akashic_daemon.engine.llama_cpp.vocabulary import LlamaVocabulary
from akashic_daemon.engine.torch_engine import TorchEngine, TorchOptions
from akashic_daemon.engine.torch_engine.ram_pool import RamPool
from akashic_daemon.errors import ConfigError, Unsupported
from akashic_daemon.types import SequenceId
from tiny_gguf import Shape, write_tiny_gguf
from torch_programs import TorchPrograms

pytestmark = pytest.mark.model

A, B, C = (SequenceId(n) for n in range(3))
PAGE = 16
CELLS = 1024
LAYERS = 3
STAGED = PAGE * -(-2 * (CELLS // PAGE + 4) // LAYERS)
TEXT = [(7 * n * n + 3 * n) % 256 for n in range(PAGE * 24)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_tiny_gguf(tmp_path / "tiny.gguf", shape=Shape(layers=LAYERS))


def engine(file: Path, *, hot: int | None, blocks: int = 2, **more: Any) -> TorchEngine:
    """Load with `hot` pages a head beside the stage and the open ones; None keeps all KV on the device."""
    opened = more.get("open_pages", 4)
    more |= {} if hot is None else {"gpu_kv_tokens": STAGED + (hot + (opened if blocks else 0)) * PAGE}
    options = TorchOptions(
        name="tiny", path=file, kv_type="f32", max_sequences=4, kv_tokens=CELLS, page_tokens=PAGE, threads=1,
        device="cpu", sparse_blocks=blocks, **more,
    )  # fmt: skip
    return TorchEngine(options, LlamaVocabulary(file))


def logits(engine: TorchEngine, *items: BatchItem) -> Any:
    engine.decode(items)
    return np.concatenate([engine.logits(n) for n, item in enumerate(items) if item.logits])


def prefill(engine: TorchEngine, sequence: SequenceId, tokens: list[int]) -> Any:
    return logits(engine, BatchItem(sequence, tokens, 0, logits=True))


def hot(engine: TorchEngine) -> Any:
    pool = engine.kv.pool
    assert isinstance(pool, RamPool)
    assert pool.hot is not None
    return pool.hot


@pytest.mark.parametrize("prefetch", [0, 3])
def test_few_tiles_give_the_answers_of_all(file: Path, prefetch: int) -> None:
    everything, few = engine(file, hot=None), engine(file, hot=6, prefetch_tiles=prefetch)
    assert np.array_equal(prefill(everything, A, TEXT), prefill(few, A, TEXT))
    for n in range(3 * PAGE):
        item = BatchItem(A, [n % 7], len(TEXT) + n, logits=True)
        assert np.array_equal(logits(everything, item), logits(few, item))
        hot(few).check()
    wanted, lacked, ahead = hot(few).counts()
    assert 0 < lacked < wanted, "all tiles lacked or none did: the test shows nothing"
    assert (ahead > 0) == (prefetch > 0)


def test_dense_decode_reads_everything_from_ram(file: Path) -> None:
    everything, staged = engine(file, hot=None, blocks=0), engine(file, hot=0, blocks=0)
    assert np.array_equal(prefill(everything, A, TEXT), prefill(staged, A, TEXT))
    before = staged.kv.pool.stage.read_pages  # type: ignore[attr-defined]
    item = BatchItem(A, [5], len(TEXT), logits=True)
    assert np.array_equal(logits(everything, item), logits(staged, item))
    assert staged.kv.pool.stage.read_pages - before == LAYERS * (len(TEXT) // PAGE + 1)  # type: ignore[attr-defined]
    assert "every step" in staged.warnings[0]


@pytest.mark.parametrize("seed", range(4))
def test_random_lives_of_sequences_are_the_same_in_ram(file: Path, seed: int) -> None:
    """Prefill, decode, share, drop, move, save, export, import and packing, in any order, with tiles for a quarter or fewer."""
    chance = random.Random(seed)
    engines = engine(file, hot=None), engine(file, hot=15, open_pages=chance.choice((1, 3)))
    lives: dict[int, int] = {}
    for _ in range(60):
        _random_step(chance, engines, lives)
        for one in engines:
            one.kv.check()
        hot(engines[1]).check()
    wanted, lacked, _ = hot(engines[1]).counts()
    assert 0 < lacked < wanted, "no tile lacked, or all did: the test shows nothing"


def _random_step(chance: random.Random, engines: tuple[TorchEngine, ...], lives: dict[int, int]) -> None:
    roll, sequence = chance.random(), chance.randrange(4)
    if sequence not in lives:
        others = sorted(lives)
        if others and chance.random() < 0.5:
            source, lives[sequence] = SequenceId(others[0]), lives[others[0]]
            for one in engines:
                one.share(source, SequenceId(sequence), 0, lives[sequence])
        else:
            lives[sequence] = 0
        roll = 0.0
    own, end = SequenceId(sequence), lives[sequence]
    if end > 200 or roll > 0.93:
        for one in engines:
            one.release(own)
        del lives[sequence]
    elif roll < 0.3:
        _same(engines, [_item(chance, sequence, lives, chance.randint(2, 60))])
    elif roll < 0.75:
        chosen = [s for s in sorted(lives) if chance.random() < 0.7] or [sequence]
        _same(engines, [_item(chance, s, lives, 1) for s in chosen])
    elif roll < 0.82 and end > 20:
        start = chance.randrange(end - 10)
        for one in engines:
            one.release(own, start, start + 7)
    else:
        _there_and_back(engines, own)


def _item(chance: random.Random, sequence: int, lives: dict[int, int], count: int) -> BatchItem:
    start = lives[sequence]
    lives[sequence] += count
    return BatchItem(SequenceId(sequence), [chance.randrange(256) for _ in range(count)], start, logits=True)


def _same(engines: tuple[TorchEngine, ...], items: list[BatchItem]) -> None:
    first, second = (logits(one, *items) for one in engines)
    assert np.array_equal(first, second)


def _there_and_back(engines: tuple[TorchEngine, ...], sequence: SequenceId) -> None:
    """Export the longest run from the end, let go of it, and import it again."""
    out = []
    for one in engines:
        held = one.position_range(sequence)
        if held is None:
            return
        last = one.kv.views(sequence)[-1]
        start, end = int(last[3] + last[1]), held[1] + 1
        room = bytearray(one.export_bytes(end - start, "as_computed"))
        one.export_cells(sequence, start, end, memoryview(room), "as_computed")
        one.release(sequence, start, end)
        one.import_cells(memoryview(room), sequence, start, end)
        out.append(bytes(room))
    assert out[0] == out[1]


@pytest.mark.parametrize("blocks", [0, 64])
def test_programs_in_ram_give_the_oracles_logits(tmp_path: Path, blocks: int) -> None:
    file = write_tiny_gguf(tmp_path / "tiny.gguf", seed=5)
    programs = TorchPrograms(file, 5, PAGE, sparse_blocks=blocks, gpu_kv_tokens=4096)
    try:
        while programs.done < 40:
            programs.act()
            pool = programs.engine.kv.pool
            if pool.hot is not None:
                pool.hot.check()
        assert programs.worst < 1e-4
        assert programs.engine.kv.packed_cells, "no page was packed: the test shows nothing"
    finally:
        programs.engine.close()


def test_a_step_of_more_sequences_than_tiles_serve_is_staged_and_says_so(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    everything, few = engine(file, hot=None), engine(file, hot=5)
    for sequence in (A, B, C):
        tokens = [(t + sequence) % 256 for t in TEXT[:80]]
        assert np.array_equal(prefill(everything, sequence, tokens), prefill(few, sequence, tokens))
    items = [BatchItem(sequence, [9], 80, logits=True) for sequence in (A, B, C)]
    assert np.array_equal(logits(everything, *items), logits(few, *items))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert hot(few).counts()[0] == 0


def test_too_little_room_names_the_least_that_would_do(file: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"cache\.gpu_kv_tokens is 64: .* take the room of ([\d,]+) tokens"
    ) as refused:
        engine(file, hot=None, gpu_kv_tokens=64)
    least = int(str(refused.value.hint).split()[3])
    engine(file, hot=None, gpu_kv_tokens=least).close()
    with pytest.raises(ConfigError):
        engine(file, hot=None, gpu_kv_tokens=least - PAGE)


def test_eight_bits_in_ram_are_refused(file: Path) -> None:
    with pytest.raises(Unsupported, match="8 bits"):
        TorchEngine(
            TorchOptions(name="tiny", path=file, kv_type="q8_0", kv_tokens=CELLS, device="cpu", gpu_kv_tokens=CELLS),
            LlamaVocabulary(file),
        )
