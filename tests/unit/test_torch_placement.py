"""Layers divided over devices: all of them, in order, where they fit, and refused with numbers where they don't."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")
pytest.importorskip("llama_cpp")
pytest.importorskip("gguf")
import torch

from akashic_daemon.config import Config, ModelSection
from akashic_daemon.engine.host import torch_engine
from akashic_daemon.engine.llama_cpp.vocabulary import LlamaVocabulary
from akashic_daemon.engine.torch_engine import TorchEngine, TorchOptions
from akashic_daemon.engine.torch_engine.placement import LayerRun, Need, described, divide, most_cells, runs_of
from akashic_daemon.engine.torch_engine.sizes import Sized, Types, free_bytes, place
from akashic_daemon.engine.torch_engine.source import open_source
from akashic_daemon.errors import ConfigError, ModelError, Unsupported
from tiny_gguf import Shape, write_tiny_gguf

LAYERS = 8
TYPES = Types(torch.bfloat16, torch.bfloat16)
CPU = torch.device("cpu")

needs = st.builds(
    Need,
    layers=st.integers(1, 60),
    layer=st.integers(1, 1000),
    cell=st.integers(1, 50),
    embedding=st.integers(0, 500),
    head=st.integers(0, 500),
    tied=st.booleans(),
)
rooms_of = st.lists(st.integers(0, 30_000), min_size=1, max_size=5)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_tiny_gguf(tmp_path / "tiny.gguf", shape=Shape(layers=LAYERS))


@given(rooms_of, needs, st.integers(0, 100))
def test_every_layer_gets_a_place_where_it_fits_if_there_is_any(rooms: list[int], need: Need, cells: int) -> None:
    size = need.layer + cells * need.cell

    def holds(first: int, last: int) -> list[int]:
        """Of devices first to last, when these two have embedding and head: the layers that each has room for."""
        left = rooms[first : last + 1]
        left[0] -= need.embedding
        left[-1] -= 0 if need.tied and first == last else need.head
        return [max(0, room) // size for room in left]

    counts = divide(rooms, need, cells)
    if counts is None:
        for last in range(len(rooms)):
            for first in range(last + 1):
                most = holds(first, last)
                assert not (most[0] and most[-1] and len(most[:1] + most[1:][-1:]) <= need.layers <= sum(most))
        return
    used = [number for number, count in enumerate(counts) if count]
    assert sum(counts) == need.layers
    shared = counts[used[0] : used[-1] + 1]
    assert all(count <= most for count, most in zip(shared, holds(used[0], used[-1]), strict=True))


def test_embedding_and_head_stand_with_layers_not_on_devices_that_take_none() -> None:
    need = Need(layers=10, layer=100, cell=0, embedding=200, head=200, tied=False)
    assert divide([1000, 310, 150], need, 0) is None
    assert divide([1100, 310, 150], need, 0) == [9, 1, 0]
    assert divide([150, 310, 1100], need, 0) == [0, 1, 9]


@given(rooms_of, needs)
def test_one_more_than_the_most_cells_doesnt_fit(rooms: list[int], need: Need) -> None:
    most = most_cells(rooms, need)
    assert divide(rooms, need, most + 1) is None
    assert most < 0 or divide(rooms, need, most) is not None


def test_devices_alike_get_as_many_layers_and_a_larger_one_more() -> None:
    need = Need(layers=32, layer=10, cell=1, embedding=0, head=0, tied=True)
    assert divide([1000, 1000], need, 5) == [16, 16]
    assert divide([3000, 1000], need, 5) == [24, 8]
    assert divide([1000, 14, 1000], need, 5) == [16, 0, 16]


def test_runs_follow_each_other_and_are_told() -> None:
    runs = runs_of([torch.device("cuda", n) for n in range(3)], [2, 0, 3])
    assert [(run.first, run.count) for run in runs] == [(0, 2), (2, 3)]
    assert described(runs) == "cuda:0 layers 0 to 1, cuda:2 layers 2 to 4"


def placed(
    file: Path, free_mb: list[float], monkeypatch: pytest.MonkeyPatch, warnings: list[str] | None = None, **options: Any
) -> Sized:
    """Choose among GPUs that have so many MB left."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (int(free_mb[device.index] * 2**20), 1 << 40))
    devices = [torch.device("cuda", n) for n in range(len(free_mb))]
    told = [] if warnings is None else warnings
    given = TorchOptions(name="tiny", path=file, **options)
    return place(given, open_source(file).architecture, devices, TYPES, told)


# The tiny model takes 0.56 MiB of weights, 0.5 of it in 8 layers, and 1 KiB a KV cell.
def test_auto_takes_the_fewest_gpus_that_will_do(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for free, devices in (([4.0, 4.0, 4.0], 1), ([1.5, 4.0, 4.0], 2), ([1.5, 0.4, 4.0], 3)):
        found = placed(file, free, monkeypatch, kv_tokens=2048, window_tokens=1024)
        assert len(found.runs) == devices
        assert sum(run.count for run in found.runs) == LAYERS


def test_named_devices_all_take_part(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    found = placed(file, [9.0, 9.0], monkeypatch, warnings, device="cuda:0,cuda:1", kv_tokens=2048)
    assert [run.count for run in found.runs] == [4, 4]
    assert "cuda:0 layers 0 to 3, cuda:1 layers 4 to 7" in warnings[0]
    found = placed(file, [9.0, 0.1, 9.0], monkeypatch, warnings, device="cuda:0,cuda:1,cuda:2", kv_tokens=2048)
    assert [str(run.device) for run in found.runs] == ["cuda:0", "cuda:2"]
    assert "cuda:1 has no room for one layer" in warnings[-2]


def test_cells_that_were_not_named_fill_what_is_left(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    found = placed(file, [3.5, 3.5], monkeypatch, warnings, device="cuda:0,cuda:1", window_tokens=16384)
    assert 4096 < found.cells < 7168 - 560
    assert found.window == found.cells
    assert f"the window is {found.cells:,} of 16,384 tokens" in warnings[-1]


def test_a_sum_that_doesnt_fit_is_refused_with_numbers(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = r"weights take 0\.0 GiB and 1,048,576 KV cells 1\.0, a layer 0\.13 of it; left, in GiB: cuda:0 0\.1, cuda:1 0\.1"
    with pytest.raises(ModelError, match=said) as refused:
        placed(file, [100.0, 120.0], monkeypatch, kv_tokens=1 << 20)
    most = int(str(refused.value.message).split("beside the weights, ")[1].split()[0].replace(",", ""))
    assert placed(file, [100.0, 120.0], monkeypatch, device="cuda:0,cuda:1", kv_tokens=most).cells == most
    with pytest.raises(ModelError, match="not even the weights fit"):
        placed(file, [0.1, 0.1], monkeypatch, kv_tokens=1024)


def test_a_device_named_twice_has_half_each_time() -> None:
    options = TorchOptions(name="tiny", path=Path(), memory_bytes=1000)
    assert free_bytes(options, [CPU, CPU]) == [500, 500]


@pytest.mark.parametrize(
    ("devices", "error", "said"),
    [
        ("cpu,cuda:0", Unsupported, "no CUDA device"),
        ("cpu,moon", ConfigError, "'moon' is unknown"),
        ("cpu,meta", ConfigError, "doesn't run on 'meta'"),
        (",".join(["cpu"] * (LAYERS + 1)), ConfigError, "9 devices are named for the 8 layers"),
    ],
)
def test_devices_that_cant_be_used_are_named(file: Path, devices: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        TorchEngine(
            TorchOptions(name="tiny", path=file, device=devices, kv_tokens=1024, window_tokens=1024),
            LlamaVocabulary(file),
        )


def test_a_gpu_that_isnt_there_and_two_kinds_are_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for devices, said in (("cuda:0,cuda:2", "has 2, cuda:0 to cuda:1"), ("cuda:0,cpu", "are of two kinds")):
        with pytest.raises(ConfigError, match=said):
            TorchEngine(TorchOptions(name="tiny", path=file, device=devices), LlamaVocabulary(file))


def test_settings_name_the_devices_and_may_not_contradict_each_other(file: Path) -> None:
    config = Config(model=ModelSection(torch_devices="cpu,cpu", gpu_layers=0, window_tokens=512, kv_type="f32"))
    engine = torch_engine(config, "tiny", file)
    assert isinstance(engine, TorchEngine)
    assert engine.model.metadata["devices"] == "cpu layers 0 to 3, cpu layers 4 to 7"
    assert "stand on 2 devices" in engine.warnings[0]
    engine.close()
    with pytest.raises(ConfigError, match=r"torch_devices is cuda:0, but model\.gpu_layers is 0"):
        torch_engine(Config(model=ModelSection(torch_devices="cuda:0", gpu_layers=0)), "tiny", file)


def test_one_device_has_one_run(file: Path) -> None:
    options = TorchOptions(name="tiny", path=file, device="cpu")
    found = place(options, open_source(file).architecture, [CPU], TYPES, [])
    assert found == Sized((LayerRun(CPU, 0, LAYERS),))
