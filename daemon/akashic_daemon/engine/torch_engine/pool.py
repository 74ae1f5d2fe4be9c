"""The tensors behind the pages: K and V of every layer, [layers, pages, kv_heads, page_tokens, head_dim].

K is turned by its slot in the page only. One (page, head) tile is contiguous. Knows nothing of who sees what.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Protocol, TypedDict

import numpy as np
import numpy.typing as npt
import torch

from akashic_daemon.engine.torch_engine.architecture import Architecture
from akashic_daemon.engine.torch_engine.pages import Packing
from akashic_kernels.block_summary import make_bounds, update_bounds
from akashic_kernels.kv_quant.reference import quantise_rows
from akashic_kernels.rope import make_rope
from akashic_kernels.rope.reference import rotate
from akashic_kernels.views import PageShape

Cells = npt.NDArray[np.int64]
Stored = tuple[torch.Tensor, ...]
"""K and V of some cells as they lie: [cells, kv_heads, head_dim]; in eight bits with their scales [cells, kv_heads].

Of a layer, the same with [pages, kv_heads, page_tokens] for cells and heads.
"""


class Scales(TypedDict):
    """A layer's scales as the kernels name them: [pages, kv_heads, page_tokens], or None where KV isn't 8 bits wide."""

    k_scale: torch.Tensor | None
    v_scale: torch.Tensor | None


def scales_in(pages: Stored) -> Scales:
    """Return the scales among a layer's parts."""
    k_scale, v_scale = pages[2:] or (None, None)
    return Scales(k_scale=k_scale, v_scale=v_scale)


class Pool(Protocol):
    """What the page table's owner needs of K and V, wherever they lie. `device` is where steps begin.

    Cells may be named on any device; they are sent once for all layers to where K and V lie.
    """

    device: torch.device
    dtype: torch.dtype
    shape: PageShape
    page_tokens: int

    @property
    def layers(self) -> int:
        """How many layers it holds."""

    def read(self, cells: torch.Tensor) -> Iterator[Stored]:
        """Yield copies of what these cells hold, layer by layer; use them before anything else is done to the pool."""

    def write(self, cells: torch.Tensor, stored: Iterable[Stored], source: torch.Tensor) -> None:
        """Put what was stored in the slots of `source`, layer by layer, into these cells; K is turned where slots differ."""

    def move(self, packing: Packing) -> None:
        """Carry out a packing."""

    def renew(self, cells: Cells) -> None:
        """Bring the bounds of these cells' pages up to date."""


class KvPool:
    """`pages` pages of `page_tokens` slots on one device; `bounded` ones keep the bounds of their keys too.

    dtype: int8 keeps each head of a token as 8-bit numbers with one scale. in_ram: K and V lie in RAM, pinned where the
    device is a GPU, the bounds on the device.
    """

    def __init__(
        self,
        shape: Architecture,
        pages: int,
        page_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        bounded: bool = False,
        in_ram: bool = False,
    ) -> None:
        self.page_tokens = page_tokens
        self.device = device
        self.dtype = dtype
        home = torch.device("cpu") if in_ram else device
        self.rope, self._home_rope = (
            make_rope(
                torch.from_numpy(shape.rope.frequencies).float(),
                attention_scale=shape.rope.attention_scale,
                layout="half",
                device=where,
            )
            for where in (device, home)
        )
        self.shape = PageShape(pages, shape.kv_heads, page_tokens, shape.head_dim)
        # Zeros, not empty memory: a masked slot counts nothing only while it holds a number.
        size, pinned = (shape.layers, *self.shape), in_ram and device.type == "cuda"
        self.k, self.v = (torch.zeros(size, dtype=dtype, device=home, pin_memory=pinned) for _ in "kv")
        self.scales: tuple[torch.Tensor, ...] = ()
        if dtype == torch.int8:
            self.scales = tuple(
                torch.zeros(size[:-1], dtype=torch.float32, device=home, pin_memory=pinned) for _ in "kv"
            )
        kind = torch.float32 if self.scales else dtype
        rows = shape.layers * (pages + 1) if bounded else 0
        made = make_bounds(rows, shape.kv_heads, shape.head_dim, dtype=kind, device=device)
        self.all_bounds = made.view(shape.layers if bounded else 0, pages + 1, *made.shape[1:])
        """[layers, pages + 1, kv_heads, 2, head_dim]: the last page is nobody's."""
        self.bounds = [of_layer[:pages] for of_layer in self.all_bounds]

    @property
    def layers(self) -> int:
        """How many layers it holds."""
        return len(self.k)

    def of_layer(self, layer: int) -> Stored:
        """Return a layer's K and V, and their scales if there are any."""
        return tuple(part[layer] for part in (self.k, self.v, *self.scales))

    def scales_of(self, layer: int) -> Scales:
        """Return a layer's scales."""
        return scales_in(self.of_layer(layer))

    def read(self, cells: torch.Tensor) -> Iterator[Stored]:
        """Yield copies of what these cells hold, layer by layer."""
        pages, slots = self._places(cells)
        parts = (self.k, self.v, *self.scales)
        return (tuple(part[layer][pages, :, slots] for part in parts) for layer in range(self.layers))

    def write(self, cells: torch.Tensor, stored: Iterable[Stored], source: torch.Tensor) -> None:
        """Put what was stored in the slots of `source` into these cells; K is turned where slots differ.

        Where they agree its bits stay. The pages' bounds are `renew`'s to set.
        """
        pages, slots = self._places(cells)
        steps = slots - self._places(source)[1]
        for layer, found in zip(range(self.layers), stored, strict=True):
            values = self._turned(tuple(part.to(self.k.device) for part in found), steps)
            for part, new in zip((self.k, self.v, *self.scales), values, strict=True):
                part[layer][pages, :, slots] = new

    def _places(self, cells: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the pages and slots of cells, where K and V lie."""
        cells = cells.to(self.k.device)
        return cells // self.page_tokens, cells % self.page_tokens

    def _turned(self, stored: Stored, steps: torch.Tensor) -> Stored:
        k = stored[0]
        wide = k.float() * stored[2][..., None] if self.scales else k
        moved = rotate(wide, steps[:, None], replace(self._home_rope, attention_scale=1.0), torch.float32)
        differ = steps != 0
        if not self.scales:
            return torch.where(differ[:, None, None], moved.to(k.dtype), k), stored[1]
        moved, scale = quantise_rows(moved)
        return (
            torch.where(differ[:, None, None], moved, k),
            stored[1],
            torch.where(differ[:, None], scale, stored[2]),
            stored[3],
        )

    def move(self, packing: Packing) -> None:
        """Carry out a packing, layer by layer."""
        source, target = torch.from_numpy(packing.source), torch.from_numpy(packing.target)
        self.write(target, self.read(source), source)
        self.renew(packing.target)

    def renew(self, cells: Cells) -> None:
        """Bring the bounds of these cells' pages up to date; they are written from their first slot on."""
        if not self.bounds:
            return
        runs = torch.from_numpy(self.written_runs(cells)[1]).to(self.device)
        for layer, bounds in enumerate(self.bounds):
            update_bounds(bounds, self.k[layer], runs, k_scale=self.scales_of(layer)["k_scale"])

    def written_runs(self, cells: Cells) -> tuple[Cells, npt.NDArray[np.int32]]:
        """Return the pages of these cells, and a run (page, first slot, count) for each."""
        pages, which, counts = np.unique(cells // self.page_tokens, return_inverse=True, return_counts=True)
        first = np.full(len(pages), self.page_tokens)
        np.minimum.at(first, which, cells % self.page_tokens)
        return pages, np.stack([pages, first, counts], axis=1).astype(np.int32)
