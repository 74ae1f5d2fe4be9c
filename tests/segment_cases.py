"""Ragged prefills over random paged KV: segments as the kernel takes them, and as one row of views for each query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from akashic_kernels.segment_prefill import SegmentPlan, plan_segments, segment_prefill
from akashic_kernels.views import PageShape
from kernel_bounds import poisoned
from paged_kv import PagedKv, ViewTuple, attention_of


@dataclass(frozen=True)
class Segment:
    """`views` in the order of the trajectory, the last `count` tokens being the queries' own."""

    views: list[ViewTuple]
    count: int
    position: int


def pages_in_order(tokens: int, page_size: int = 16, first_page: int = 0, start: int = 0) -> list[ViewTuple]:
    """Views of `tokens` tokens that fill pages from `first_page` on, the first token at position `start`."""
    return [
        (first_page + i, 0, min(page_size, tokens - i * page_size), start + i * page_size)
        for i in range(-(-tokens // page_size))
    ]


def seen_by(segment: Segment, index: int) -> list[ViewTuple]:
    """The views of the segment's query `index` alone: all tokens up to its own."""
    left = sum(view[2] for view in segment.views) - segment.count + index + 1
    seen: list[ViewTuple] = []
    for page, offset, length, base in segment.views:
        if left > 0:
            seen.append((page, offset, min(length, left), base))
        left -= length
    return seen


class SegmentCase:
    """Segments over a pool, and what they must give."""

    def __init__(self, segments: list[Segment], **shape: Any) -> None:
        self.rows = [seen_by(segment, i) for segment in segments for i in range(segment.count)]
        positions = [segment.position + i for segment in segments for i in range(segment.count)]
        self.kv = PagedKv(self.rows, positions, **shape)
        table: list[list[int]] = []
        views: list[ViewTuple] = []
        for segment in segments:
            start = sum(row[1] for row in table)
            table.append([start, segment.count, len(views), len(segment.views), segment.position])
            views += segment.views
        self.segments = torch.tensor(table, dtype=torch.int32).view(-1, 5)
        self.views = torch.tensor(views, dtype=torch.int32).view(-1, 4)

    def plan(self, backend: Any = "triton") -> SegmentPlan:
        """Plan the case on its device."""
        shape = PageShape(*self.kv.k_pages.shape)
        return plan_segments(
            self.segments,
            self.views,
            self.kv.rope,
            shape,
            query_heads=self.kv.q_heads,
            device=self.kv.device,
            backend=backend,
        )

    def run(self, plan: SegmentPlan) -> Tensor:
        """Attend into a poisoned result."""
        kv = self.kv
        out = poisoned(*kv.query.shape, dtype=kv.dtype, device=kv.device)
        assert segment_prefill(kv.query, kv.k_pages, kv.v_pages, plan, **kv.scales, out=out) is out
        return out

    def truth(self) -> Tensor:
        """Attention in float64."""
        return attention_of(self.kv, [[row] for row in self.rows], torch.float64, torch.float64)[0]

    def same_type(self) -> Tensor:
        """An independent result in the pages' type."""
        return attention_of(self.kv, [[row] for row in self.rows], torch.float32, self.kv.dtype)[0]


def at_positions(case: SegmentCase, distance: int) -> None:
    """Move all text and queries of a case by `distance`."""
    case.views[:, 3] += distance
    case.segments[:, 4] += distance
    case.rows = [[(page, offset, length, base + distance) for page, offset, length, base in row] for row in case.rows]
    case.kv.positions = [position + distance for position in case.kv.positions]
