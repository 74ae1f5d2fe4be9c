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
from akashic_daemon.engine.torch_engine import TorchEngine, TorchOptions, loading
from akashic_daemon.engine.torch_engine.ram_pool import RamPool
from akashic_daemon.engine.torch_engine.source import open_source
from akashic_daemon.errors import ConfigError
from akashic_daemon.types import SequenceId
from akashic_kernels.tile_cache.validation import SLOTS_MOST
from tiny_gguf import Shape, write_tiny_gguf
from torch_lives import logits, random_step
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
    """Load with `hot` pages a head beside the open ones, fewer than the stage's room would be; None: all KV on the device."""
    opened = more.get("open_pages", 4)
    more |= {} if hot is None else {"gpu_kv_tokens": STAGED}
    options = TorchOptions(
        name="tiny", path=file, max_sequences=4, kv_tokens=CELLS, page_tokens=PAGE, threads=1,
        device="cpu", sparse_blocks=blocks, **{"kv_type": "f32", **more},
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        if hot is not None:
            patch.setattr(loading, "_hot_pages", lambda *_: (hot, opened if blocks else 0))
        return TorchEngine(options, LlamaVocabulary(file))


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


def test_the_stage_takes_the_place_of_hot_tiles_and_gives_it_back(file: Path) -> None:
    everything, lending = engine(file, hot=None), engine(file, hot=None, gpu_kv_tokens=STAGED)
    assert lending.kv.pool.stage.nbytes == 0  # type: ignore[attr-defined]
    for turn in range(3):
        start = turn * (5 * PAGE + 3)
        item = BatchItem(A, TEXT[start : start + 5 * PAGE], start, logits=True)
        assert np.array_equal(logits(everything, item), logits(lending, item))
        hot(lending).check()
        for n in range(3):
            item = BatchItem(A, [n], start + 5 * PAGE + n, logits=True)
            assert np.array_equal(logits(everything, item), logits(lending, item))
            hot(lending).check()
    wanted, lacked, _ = hot(lending).counts()
    assert 0 < lacked < wanted


@pytest.mark.parametrize("kv_type", ["f32", "q8_0"])
def test_dense_decode_reads_everything_from_ram(file: Path, kv_type: str) -> None:
    everything, staged = (engine(file, hot=hot, blocks=0, kv_type=kv_type) for hot in (None, 0))
    assert np.array_equal(prefill(everything, A, TEXT), prefill(staged, A, TEXT))
    before = staged.kv.pool.stage.read_pages  # type: ignore[attr-defined]
    item = BatchItem(A, [5], len(TEXT), logits=True)
    assert np.array_equal(logits(everything, item), logits(staged, item))
    assert staged.kv.pool.stage.read_pages - before == LAYERS * (len(TEXT) // PAGE + 1)  # type: ignore[attr-defined]
    assert "every step" in staged.warnings[0]


@pytest.mark.parametrize(("seed", "kv_type"), [(0, "f32"), (1, "f32"), (2, "q8_0"), (3, "f16"), (4, "q8_0")])
def test_random_lives_of_sequences_are_the_same_in_ram(file: Path, seed: int, kv_type: str) -> None:
    """Prefill, decode, share, drop, move, save, export, import and packing, in any order, with tiles for a quarter or fewer."""
    chance = random.Random(seed)
    opened = chance.choice((1, 3))
    engines = engine(file, hot=None, kv_type=kv_type), engine(file, hot=15, open_pages=opened, kv_type=kv_type)
    lives: dict[int, int] = {}
    for _ in range(60):
        random_step(chance, engines, lives)
        for one in engines:
            one.kv.check()
        hot(engines[1]).check()
    wanted, lacked, _ = hot(engines[1]).counts()
    assert 0 < lacked < wanted, "no tile lacked, or all did: the test shows nothing"


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


def test_a_pool_of_fewer_pages_than_a_sequence_may_read_is_never_staged_to_decode(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocks = CELLS // PAGE + 20
    everything, few = engine(file, hot=None, blocks=blocks), engine(file, hot=None, blocks=blocks, gpu_kv_tokens=4096)
    assert np.array_equal(prefill(everything, A, TEXT), prefill(few, A, TEXT))
    item = BatchItem(A, [5], len(TEXT), logits=True)
    assert np.array_equal(logits(everything, item), logits(few, item))
    assert hot(few).counts()[0] == 2 * LAYERS * (len(TEXT) // PAGE + 1), "of each layer and KV head"
    assert caplog.records == []


def test_a_gpu_keeps_no_more_tiles_of_a_head_than_the_cache_can_order(file: Path) -> None:
    shape = open_source(file).architecture
    options = TorchOptions(name="tiny", path=file, page_tokens=PAGE, sparse_blocks=2, gpu_kv_tokens=PAGE * 100_000)
    assert loading._hot_pages(options, shape, 50_000) == (SLOTS_MOST, options.open_pages)


def test_too_little_room_names_the_least_that_would_do(file: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"cache\.gpu_kv_tokens is 64: .* take the room of ([\d,]+) tokens"
    ) as refused:
        engine(file, hot=None, gpu_kv_tokens=64)
    least = int(str(refused.value.hint).split()[3])
    engine(file, hot=None, gpu_kv_tokens=least).close()
    with pytest.raises(ConfigError):
        engine(file, hot=None, gpu_kv_tokens=least - PAGE)


def test_eight_bits_take_a_quarter_of_f32_in_ram(file: Path) -> None:
    wide, narrow = (engine(file, hot=6, kv_type=kv_type).kv.pool for kv_type in ("f32", "q8_0"))
    assert isinstance(wide, RamPool)
    assert isinstance(narrow, RamPool)
    head = Shape(layers=LAYERS).head_dim
    assert narrow.ram_bytes * 4 * head == wide.ram_bytes * (head + 4)
