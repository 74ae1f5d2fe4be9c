"""Layers on several devices say what they say on one, bit for bit: CPUs named several times stand for the devices."""

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
from akashic_daemon.engine.torch_engine.split import SplitPool
from akashic_daemon.errors import ConfigError
from akashic_daemon.types import SequenceId
from programs_driver import CLOSE
from tiny_gguf import Shape, write_tiny_gguf
from torch_lives import logits, random_step
from torch_programs import TorchPrograms

pytestmark = pytest.mark.model

A, B = SequenceId(0), SequenceId(1)
PAGE, CELLS, LAYERS = 16, 1024, 5
FEW = CELLS + 4 * PAGE
"""The least for a device of two layers: hot tiles stand where the stage puts all pages of both."""
TEXT = [(7 * n * n + 3 * n) % 256 for n in range(300)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_tiny_gguf(tmp_path / "tiny.gguf", shape=Shape(layers=LAYERS))


def engine(file: Path, devices: int, **more: Any) -> TorchEngine:
    given = {"kv_type": "f32", **more}
    options = TorchOptions(
        name="tiny", path=file, max_sequences=4, kv_tokens=CELLS, window_tokens=CELLS, page_tokens=PAGE, threads=1,
        device=",".join(["cpu"] * devices), **given,
    )  # fmt: skip
    return TorchEngine(options, LlamaVocabulary(file))


def parts(engine: TorchEngine) -> tuple[Any, ...]:
    pool = engine.kv.pool
    assert isinstance(pool, SplitPool)
    return pool.parts


@pytest.mark.parametrize(
    ("seed", "devices", "more"),
    [
        (0, 2, {}),
        (1, 3, {"sparse_blocks": 2}),
        (2, LAYERS, {"kv_type": "q8_0"}),
        (3, 2, {"gpu_kv_tokens": FEW, "sparse_blocks": 2}),
        (4, 3, {"gpu_kv_tokens": 2 * CELLS}),
        (5, 2, {"gpu_kv_tokens": FEW, "sparse_blocks": 2, "kv_type": "q8_0"}),
    ],
    ids=["dense", "sparse", "8 bits", "in ram, sparse", "in ram, dense", "in ram, sparse, 8 bits"],
)
def test_random_lives_of_sequences_are_the_same_on_several_devices(
    file: Path, seed: int, devices: int, more: dict[str, Any]
) -> None:
    """Prefill, decode, share, drop, export, import and packing, in any order; what is exported is alike to the byte."""
    chance = random.Random(seed)
    engines = engine(file, 1, **more), engine(file, devices, **more)
    assert len(parts(engines[1])) == devices
    lives: dict[int, int] = {}
    for _ in range(35):
        random_step(chance, engines, lives)
        for one in engines:
            one.kv.check()
        for part in parts(engines[1]):
            if isinstance(part, RamPool) and part.hot is not None:
                part.hot.check()
    for one in engines:
        one.close()


@pytest.mark.parametrize(("seed", "devices", "more"), [(3, "cpu,cpu", {}), (4, "cpu,cpu,cpu", {"gpu_kv_tokens": 4096})])
def test_programs_across_devices_give_the_oracles_logits(
    tmp_path: Path, seed: int, devices: str, more: dict[str, int]
) -> None:
    """Drop, Repos, splices, branches, eviction and recovery, through the index."""
    file = write_tiny_gguf(tmp_path / "tiny.gguf", seed=seed, shape=Shape(layers=3))
    programs = TorchPrograms(file, seed, PAGE, device=devices, **more)
    try:
        while programs.done < 40:
            programs.act()
        assert programs.worst < CLOSE
        assert programs.moved, "no program moved a cell: the test shows nothing"
        assert programs.recovered, "no program recovered a hole: the test shows nothing"
        assert programs.engine.kv.packed_cells, "no page was packed: the test shows nothing"
        assert isinstance(programs.engine.kv.pool, SplitPool)
    finally:
        programs.engine.close()


def test_kv_of_several_devices_is_imported_on_one_and_back(file: Path) -> None:
    """What tiers keep doesn't depend on how many devices there are, and neither does the fingerprint."""
    one, two = engine(file, 1), engine(file, 2)
    assert one.model.fingerprint == two.model.fingerprint
    expected = logits(one, BatchItem(A, TEXT, 0, logits=True))
    logits(two, BatchItem(A, TEXT, 0, logits=True))
    found = []
    for source, target in ((two, one), (one, two)):
        room = bytearray(source.export_bytes(299, "as_computed"))
        source.export_cells(A, 0, 299, memoryview(room), "as_computed")
        target.import_cells(memoryview(room), B, 0, 299)
        found.append(logits(target, BatchItem(B, TEXT[299:], 299, logits=True)))
    assert np.array_equal(*found)
    assert np.allclose(found[0], expected, rtol=1e-4, atol=1e-5)


def test_deferred_pieces_are_computed_across_devices(file: Path) -> None:
    found = []
    for one in (engine(file, 1), engine(file, 3)):
        one.defer(BatchItem(A, TEXT[:100], 0, logits=False))
        one.release(A, 10, 30)
        one.defer(BatchItem(A, TEXT[100:150], 100, logits=False))
        found.append(logits(one, BatchItem(A, TEXT[150:160], 150, logits=True), BatchItem(B, TEXT[:7], 0, logits=True)))
    assert np.array_equal(*found)


def test_each_device_needs_room_for_two_of_its_layers(file: Path) -> None:
    """Of KV in RAM, each device stages its own layers: fewer layers, more of the room that each has."""
    said = r"cache\.gpu_kv_tokens is 512: two layers of .* take the room of ([\d,]+) tokens"
    with pytest.raises(ConfigError, match=said) as refused:
        engine(file, 2, gpu_kv_tokens=512)
    least = int(str(refused.value.hint).split()[3])
    two = engine(file, 2, gpu_kv_tokens=least)
    assert [type(part) for part in parts(two)] == [RamPool, RamPool]
    assert "on the devices" in two.warnings[1]
