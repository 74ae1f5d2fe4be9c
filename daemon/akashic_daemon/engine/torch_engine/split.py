"""Layers on several devices: each run of them has its own pool and attention, over one page table.

What a layer needs stays on its device; only the residual stream crosses from one to the next (`forward`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import torch

from akashic_daemon.engine.torch_engine.architecture import Architecture
from akashic_daemon.engine.torch_engine.attention import Heads, PagedAttention, Plan, Sparse
from akashic_daemon.engine.torch_engine.forward import computing_on
from akashic_daemon.engine.torch_engine.pages import Packing
from akashic_daemon.engine.torch_engine.pool import Cells, KvPool, Pool, Stored
from akashic_daemon.engine.torch_engine.ram_attention import RamAttention
from akashic_daemon.engine.torch_engine.ram_pool import RamPool
from akashic_daemon.engine.torch_engine.step import Step


class SplitPool:
    """Pools of neighbouring layers, in order; all have the same pages."""

    def __init__(self, parts: Sequence[KvPool]) -> None:
        self.parts = tuple(parts)
        first = self.parts[0]
        self.device, self.dtype, self.shape, self.page_tokens = (
            first.device,
            first.dtype,
            first.shape,
            first.page_tokens,
        )
        self.places = [(part, layer) for part, pool in enumerate(self.parts) for layer in range(pool.layers)]
        """Of each layer: which part it is in, and its number there."""

    @property
    def layers(self) -> int:
        """How many layers it holds."""
        return len(self.places)

    def read(self, cells: torch.Tensor) -> Iterator[Stored]:
        """Yield copies of what these cells hold, layer by layer, each on its device or in RAM."""
        for part in self.parts:
            with computing_on(part.device):  # left before anything is yielded: whoever takes it stands elsewhere
                layers = part.read(cells)
            yield from layers

    def write(self, cells: torch.Tensor, stored: Iterable[Stored], source: torch.Tensor) -> None:
        """Put what was stored into these cells."""
        layers = iter(stored)
        for part in self.parts:
            with computing_on(part.device):
                part.write(cells, islice(layers, part.layers), source)

    def move(self, packing: Packing) -> None:
        """Carry out a packing on each device."""
        for part in self.parts:
            with computing_on(part.device):
                part.move(packing)

    def renew(self, cells: Cells) -> None:
        """Bring the bounds of these cells' pages up to date."""
        for part in self.parts:
            with computing_on(part.device):
                part.renew(cells)


class SplitAttention:
    """Attention over a `SplitPool`; a plan is one for each part."""

    def __init__(self, shape: Architecture, pool: SplitPool, sparse: Sparse | None) -> None:
        self.sparse = sparse
        self.parts = [_over(part, shape, sparse) for part in pool.parts]
        self._places = pool.places

    def plan(self, step: Step) -> list[Plan]:
        """Make the tables of a step on each device."""
        plans = []
        for part in self.parts:
            with computing_on(part.pool.device):
                plans.append(part.plan(step))
        return plans

    def run(self, layer: int, qkv: Heads, plan: list[Plan]) -> torch.Tensor:
        """Write K and V of the step's rows, and return what Q sees: [rows, heads, head_dim]."""
        part, number = self._places[layer]
        return self.parts[part].run(number, qkv, plan[part])


def attention_over(pool: Pool, shape: Architecture, sparse: Sparse | None) -> PagedAttention | SplitAttention:
    """Return attention over a pool, wherever it lies."""
    if isinstance(pool, SplitPool):
        return SplitAttention(shape, pool, sparse)
    assert isinstance(pool, KvPool)
    return _over(pool, shape, sparse)


def _over(pool: KvPool, shape: Architecture, sparse: Sparse | None) -> PagedAttention:
    return RamAttention(shape, pool, sparse) if isinstance(pool, RamPool) else PagedAttention(shape, pool, sparse)
