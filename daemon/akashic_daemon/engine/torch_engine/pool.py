"""The tensors behind the pages: K and V of every layer, [layers, pages, kv_heads, page_tokens, head_dim].

K is turned by its slot in the page only. One (page, head) tile is contiguous. Knows nothing of who sees what.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from akashic_daemon.engine.torch_engine.architecture import Architecture
from akashic_daemon.engine.torch_engine.pages import Packing
from akashic_kernels.block_summary import make_bounds, update_bounds
from akashic_kernels.rope import make_rope
from akashic_kernels.rope.reference import rotate
from akashic_kernels.views import PageShape


class KvPool:
    """`pages` pages of `page_tokens` slots on one device; `bounded` ones keep the bounds of their keys too."""

    def __init__(
        self,
        shape: Architecture,
        pages: int,
        page_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        bounded: bool = False,
    ) -> None:
        self.page_tokens = page_tokens
        self.device = device
        self.dtype = dtype
        self.rope = make_rope(
            torch.from_numpy(shape.rope.frequencies).float(),
            attention_scale=shape.rope.attention_scale,
            layout="half",
            device=device,
        )
        self.shape = PageShape(pages, shape.kv_heads, page_tokens, shape.head_dim)
        # Zeros, not empty memory: a masked slot counts nothing only while it holds a number.
        self.k = torch.zeros((shape.layers, *self.shape), dtype=dtype, device=device)
        self.v = torch.zeros((shape.layers, *self.shape), dtype=dtype, device=device)
        self.bounds: list[torch.Tensor] = []
        if bounded:
            self.bounds = [
                make_bounds(pages, shape.kv_heads, shape.head_dim, dtype=dtype, device=device)
                for _ in range(shape.layers)
            ]

    @property
    def layers(self) -> int:
        """How many layers it holds."""
        return len(self.k)

    def read(self, layer: int, cells: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return copies of K and V of these cells: [cells, kv_heads, head_dim]."""
        pages, slots = cells // self.page_tokens, cells % self.page_tokens
        return self.k[layer][pages, :, slots], self.v[layer][pages, :, slots]

    def write(self, layer: int, cells: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Put K, turned by slot already, and V into these cells. Their pages' bounds are `renew`'s to set."""
        pages, slots = cells // self.page_tokens, cells % self.page_tokens
        self.k[layer][pages, :, slots] = k.to(self.dtype)
        self.v[layer][pages, :, slots] = v.to(self.dtype)

    def turned(self, k: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return K of the slots of `source` as it is in the slots of `target`; where they agree, its bits stay."""
        steps = target % self.page_tokens - source % self.page_tokens
        moved = rotate(k, steps[:, None], replace(self.rope, attention_scale=1.0), torch.float32)
        return torch.where((steps != 0)[:, None, None], moved.to(k.dtype), k)

    def move(self, packing: Packing) -> None:
        """Carry out a packing, layer by layer."""
        source = torch.from_numpy(packing.source).to(self.device)
        target = torch.from_numpy(packing.target).to(self.device)
        for layer in range(self.layers):
            k, v = self.read(layer, source)
            self.write(layer, target, self.turned(k, source, target), v)
        self.renew(packing.target)

    def renew(self, cells: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        """Bring the bounds of these cells' pages up to date; they are written from their first slot on."""
        if not self.bounds:
            return
        pages, which, counts = np.unique(cells // self.page_tokens, return_inverse=True, return_counts=True)
        first = np.full(len(pages), self.page_tokens)
        np.minimum.at(first, which, cells % self.page_tokens)
        runs = torch.from_numpy(np.stack([pages, first, counts], axis=1).astype(np.int32)).to(self.device)
        for bounds, k in zip(self.bounds, self.k, strict=True):
            update_bounds(bounds, k, runs)
