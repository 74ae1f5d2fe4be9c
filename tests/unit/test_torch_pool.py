"""Pools of the torch engine: what crosses between the host and the device when KV is read, written or packed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from akashic_daemon.engine.torch_engine.architecture import Architecture
from akashic_daemon.engine.torch_engine.pages import Packing
from akashic_daemon.engine.torch_engine.pool import KvPool
from akashic_daemon.engine.torch_engine.rope import Rope
from akashic_daemon.engine.torch_engine.split import SplitPool

PAGE, PAGES = 16, 4
AWAY = torch.device("meta")
"""A device of its own that computes nothing: whatever goes there from the CPU is a copy that can be counted."""
CELLS = torch.tensor([3, 4, 20, 21])


class _Copies(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts tensors that go to another device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and out.device != args[0].device:
            self.count += 1
        return out


def make_pool(layers: int, device: torch.device, *, in_ram: bool = False) -> KvPool:
    shape = Architecture(
        name="llama", layers=layers, width=64, heads=2, kv_heads=2, head_dim=32, inner=64, vocabulary_size=64,
        norm_epsilon=1e-5, window_tokens=256, tied=True, rope=Rope(10000.0 ** (-np.arange(16) / 16)),
    )  # fmt: skip
    return KvPool(shape, PAGES, PAGE, torch.float32, device, in_ram=in_ram)


def test_cells_are_named_to_a_device_once_for_all_layers() -> None:
    pool = make_pool(5, AWAY)
    with _Copies() as reading:
        assert len(list(pool.read(CELLS))) == 5
    assert reading.count == 1
    with _Copies() as packing:
        pool.move(Packing(CELLS.numpy(), CELLS.numpy() + 5))
    assert packing.count == 3, "of the source's cells for reading, and both for writing"


def test_cells_of_kv_in_ram_never_leave_the_host() -> None:
    pool = make_pool(5, AWAY, in_ram=True)
    with _Copies() as copies:
        layers = list(pool.read(CELLS))
        pool.write(CELLS + PAGE, layers, CELLS)
    assert copies.count == 0
    assert all(part.device.type == "cpu" for layer in layers for part in layer)


def test_layers_on_several_devices_are_read_and_written_as_those_of_one() -> None:
    one, several = make_pool(5, torch.device("cpu")), SplitPool([make_pool(n, torch.device("cpu")) for n in (2, 1, 2)])
    layers = [tuple(torch.randn(len(CELLS), 2, 32) for _ in "kv") for _ in range(5)]
    for pool in (one, several):
        pool.write(CELLS + 5, layers, CELLS)
    for own, other, given in zip(one.read(CELLS + 5), several.read(CELLS + 5), layers, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(own, other, strict=True))
        assert torch.equal(own[1], given[1])
        assert not torch.equal(own[0], given[0]), "nothing was turned: the test shows nothing"
