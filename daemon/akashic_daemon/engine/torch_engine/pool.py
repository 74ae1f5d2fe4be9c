"""The tensors behind the pages: K and V of every layer, [layers, pages, kv_heads, page_tokens, head_dim].

K is turned by its slot in the page only. One (page, head) tile is contiguous. Knows nothing of who sees what.
"""

from __future__ import annotations

import torch

from akashic_daemon.engine.torch_engine.architecture import Architecture
from akashic_daemon.engine.torch_engine.pages import Packing
from akashic_daemon.engine.torch_engine.turning import Turning


class KvPool:
    """`pages` pages of `page_tokens` slots on one device."""

    def __init__(
        self, shape: Architecture, pages: int, page_tokens: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.page_tokens = page_tokens
        self.device = device
        self.dtype = dtype
        self.turning = Turning(shape.rope, device)
        size = (shape.layers, pages, shape.kv_heads, page_tokens, shape.head_dim)
        # Zeros, not empty memory: a masked slot counts nothing only while it holds a number.
        self.k = torch.zeros(size, dtype=dtype, device=device)
        self.v = torch.zeros(size, dtype=dtype, device=device)

    def split(self, cells: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return pages and slots of cells."""
        return cells // self.page_tokens, cells % self.page_tokens

    def read(self, layer: int, cells: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return copies of K and V of these cells: [cells, kv_heads, head_dim]."""
        pages, slots = self.split(cells)
        return self.k[layer][pages, :, slots], self.v[layer][pages, :, slots]

    def write(self, layer: int, cells: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Put K, turned by slot already, and V into these cells."""
        pages, slots = self.split(cells)
        self.k[layer][pages, :, slots] = k.to(self.dtype)
        self.v[layer][pages, :, slots] = v.to(self.dtype)

    def turned(self, k: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return K of the slots of `source` as it is in the slots of `target`; where they agree, its bits stay."""
        steps = target % self.page_tokens - source % self.page_tokens
        return torch.where((steps != 0)[:, None, None], self.turning.turn(k, steps), k)

    def move(self, packing: Packing) -> None:
        """Carry out a packing, layer by layer."""
        source = torch.from_numpy(packing.source).to(self.device)
        target = torch.from_numpy(packing.target).to(self.device)
        for layer in range(len(self.k)):
            k, v = self.read(layer, source)
            self.write(layer, target, self.turned(k, source, target), v)
