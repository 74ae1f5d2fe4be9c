"""Random paged KV for the kernels' tests, and attention over it computed in an independent way."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from akashic_kernels.rope import Layout, Rope, make_rope
from akashic_kernels.rope.reference import rotate

ViewTuple = tuple[int, int, int, int]


def inverse_frequencies(rotary_dim: int, base: float = 500000.0) -> Tensor:
    """Give Llama 3's frequencies for a head of `rotary_dim` turned dimensions."""
    return base ** (-torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim)


@dataclass
class PagedKv:
    """A pool of pages of random keys, stored turned by their slot, and a batch that sees some of them."""

    rows: list[list[ViewTuple]]
    positions: list[int]
    head_dim: int = 32
    q_heads: int = 4
    kv_heads: int = 2
    page_size: int = 16
    dtype: torch.dtype = torch.bfloat16
    layout: Layout = "half"
    rotary_dim: int | None = None
    attention_scale: float = 1.0
    quantised: bool = False
    device: str = "cpu"
    seed: int = 0
    spread: float = 1.0
    rope: Rope = field(init=False)

    def __post_init__(self) -> None:
        made = torch.Generator().manual_seed(self.seed)
        pages = 1 + max((view[0] for row in self.rows for view in row), default=0)
        shape = (pages, self.kv_heads, self.page_size, self.head_dim)
        self.rope = make_rope(
            inverse_frequencies(self.rotary_dim or self.head_dim),
            layout=self.layout,
            attention_scale=self.attention_scale,
        )
        slots = torch.arange(self.page_size)
        keys = torch.randn(shape, generator=made, dtype=torch.float64) * self.spread
        stored = rotate(keys, slots, self.rope, torch.float64)
        values = torch.randn(shape, generator=made, dtype=torch.float64)
        self.query = torch.randn(len(self.rows), self.q_heads, self.head_dim, generator=made, dtype=torch.float64).to(
            self.dtype
        )
        self.k_scale: Tensor | None = None
        self.v_scale: Tensor | None = None
        if self.quantised:
            self.k_pages, self.k_scale = _to_int8(stored)
            self.v_pages, self.v_scale = _to_int8(values)
        else:
            self.k_pages, self.v_pages = stored.to(self.dtype), values.to(self.dtype)
            self._poison_what_no_row_sees()
        self.views = torch.tensor([view for row in self.rows for view in row], dtype=torch.int32).view(-1, 4)
        lengths = torch.tensor([0, *(len(row) for row in self.rows)])
        self.view_start = lengths.cumsum(0).to(torch.int32)
        self.query_position = torch.tensor(self.positions, dtype=torch.int32)
        self._move()

    def _poison_what_no_row_sees(self) -> None:
        seen = torch.zeros(self.k_pages.shape[0], self.page_size, dtype=torch.bool)
        for row in self.rows:
            for page, offset, length, _ in row:
                seen[page, offset : offset + length] = True
        for pages in (self.k_pages, self.v_pages):
            pages.masked_fill_(~seen[:, None, :, None], float("nan"))

    def _move(self) -> None:
        names = ("query", "k_pages", "v_pages", "k_scale", "v_scale", "views", "view_start", "query_position")
        for name in names:
            tensor = getattr(self, name)
            setattr(self, name, None if tensor is None else tensor.to(self.device))
        self.rope = make_rope(
            self.rope.inv_freq.to(self.device), layout=self.layout, attention_scale=self.attention_scale
        )

    @property
    def scales(self) -> dict[str, Any]:
        """The pages' scales as keyword arguments."""
        return {"k_scale": self.k_scale, "v_scale": self.v_scale}

    @property
    def softmax_scale(self) -> float:
        """One over the root of the head's size."""
        return 1 / math.sqrt(self.head_dim)


def _to_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = (x.abs().amax(-1) / 127).float()
    return (x / scale[..., None].double()).round().clamp(-127, 127).to(torch.int8), scale


def attention_of(
    kv: PagedKv, lists: list[list[list[ViewTuple]]], compute: torch.dtype, rounded: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Attend token by token: keys turned to their absolute positions, no pages and no split.

    `lists[row]` has one list of views for all KV heads, or one for each. `compute` float64 and `rounded` float64 give
    the truth; float32 and the kernel's type an independent result of that type (query, keys, weights and result are
    rounded to it, as torch's attention does).
    """
    out, sums = [], []
    for row, heads in enumerate(lists):
        for head in range(kv.q_heads):
            kv_head = head // (kv.q_heads // kv.kv_heads)
            views = heads[0] if len(heads) == 1 else heads[kv_head]
            one, lse = _one_head(kv, row, head, kv_head, views, compute, rounded)
            out.append(one)
            sums.append(lse)
    shape = (len(lists), kv.q_heads)
    return torch.stack(out).view(*shape, kv.head_dim), torch.stack(sums).view(shape)


def _one_head(
    kv: PagedKv, row: int, head: int, kv_head: int, views: list[ViewTuple], compute: torch.dtype, rounded: torch.dtype
) -> tuple[Tensor, Tensor]:
    keys, values, offsets = [], [], []
    for page, offset, length, base in views:
        for j in range(offset, offset + length):
            keys.append(_token(kv.k_pages, kv.k_scale, page, kv_head, j))
            values.append(_token(kv.v_pages, kv.v_scale, page, kv_head, j))
            offsets.append(base)
    if not keys:
        return torch.zeros(kv.head_dim, dtype=compute), torch.tensor(-torch.inf, dtype=compute)
    # An attention scale is already in the stored key; a further turn must not apply it again.
    plain = make_rope(kv.rope.inv_freq.cpu(), layout=kv.layout)
    stored = torch.stack(keys)
    k = rotate(stored, torch.tensor(offsets), plain, compute).to(rounded).to(compute)
    scaled = make_rope(kv.rope.inv_freq.cpu(), layout=kv.layout, attention_scale=kv.attention_scale)
    q = rotate(kv.query[row, head].cpu(), torch.tensor(kv.positions[row]), scaled, compute).to(rounded).to(compute)
    scores = (k @ q) * kv.softmax_scale
    weights = torch.exp(scores - scores.max())
    total = weights.sum()
    result = (weights.to(rounded).to(compute) @ torch.stack(values).to(rounded).to(compute)) / total
    return result.to(rounded).to(compute), scores.max() + total.log()


def _token(pages: Tensor, scale: Tensor | None, page: int, head: int, slot: int) -> Tensor:
    value = pages[page, head, slot].cpu().double()
    return value if scale is None else value * scale[page, head, slot].cpu().double()
