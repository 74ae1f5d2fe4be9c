"""Attention over paged KV by akashic_kernels: the torch reference on CPUs, Triton on GPUs, chosen by where the KV lies.

Keys lie turned by their slots and queries are turned once a view, so a view's base is all that says where its tokens
stand. A step of single tokens is decode attention; anything else is one ragged prefill, a segment an item.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from akashic_daemon.engine.torch_engine.architecture import Architecture
from akashic_daemon.engine.torch_engine.pool import KvPool, Stored, scales_in
from akashic_daemon.engine.torch_engine.step import Step
from akashic_daemon.engine.torch_engine.views import Longs
from akashic_kernels.block_select import block_select, make_selection
from akashic_kernels.block_select.api import Selection
from akashic_kernels.paged_decode import (
    DecodeWorkspace,
    make_workspace,
    paged_decode,
    paged_decode_selected,
    selected_tiles,
)
from akashic_kernels.rope_append import rope_append
from akashic_kernels.segment_prefill import SegmentPlan, plan_segments, segment_prefill

Heads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Sparse:
    """Decode reads, a row and KV head, the `sink` first and `recent` last views and the `blocks` that promise most."""

    blocks: int
    sink: int = 1
    recent: int = 2

    @property
    def most(self) -> int:
        """Views that one KV head reads at most."""
        return self.blocks + self.sink + self.recent


@dataclass(frozen=True, slots=True, eq=False)
class DecodePlan:
    """Tables of a step of single tokens, on the device; the same for every layer.

    slots: where each row's K and V go; pages: the page that this is, whatever slot stands for it.
    """

    slots: torch.Tensor
    pages: torch.Tensor
    positions: torch.Tensor
    views: torch.Tensor
    view_start: torch.Tensor
    workspace: DecodeWorkspace
    selection: Selection | None = None


@dataclass(frozen=True, slots=True, eq=False)
class PrefillPlan:
    """Tables of any other step. `order`: rows in the order in which the rows of each page are neighbours, if not as given."""

    slots: torch.Tensor
    segments: SegmentPlan
    order: torch.Tensor | None


Plan = DecodePlan | PrefillPlan


class PagedAttention:
    """Reads and writes one pool."""

    def __init__(self, shape: Architecture, pool: KvPool, sparse: Sparse | None = None) -> None:
        self.pool = pool
        self.sparse = sparse
        self.heads = shape.heads

    def plan(self, step: Step) -> Plan:
        """Make the tables of a step."""
        return self._decode_plan(step) if step.single else self._prefill_plan(step)

    def tables(self, batch: int, max_views: int) -> tuple[DecodeWorkspace, Selection | None]:
        """Allocate what decode attention of so many rows works in; rows have at most `max_views` views if sparse."""
        _, kv_heads, page_tokens, head_dim = self.pool.shape
        device, selection, tiles = self.pool.device, None, None
        if self.sparse is not None:
            selection = make_selection(
                batch, kv_heads, max_views, top_k=self.sparse.blocks, sink=self.sparse.sink,
                recent=self.sparse.recent, device=device,
            )  # fmt: skip
            tiles = selected_tiles(selection.views.shape[2], page_tokens, self.pool.dtype)
        return make_workspace(batch, self.heads, kv_heads, head_dim, device, tiles=tiles), selection

    def records(self, step: Step) -> bool:
        """Tell if a step of single tokens may be a CUDA graph."""
        return step.single

    def slots(self, step: Step) -> Longs:
        """Return where the K and V of each row go; call it once a step, before it is computed."""
        return step.cells

    def _decode_plan(self, step: Step) -> DecodePlan:
        counts = [len(s.views) for s in step.segments]
        device = self.pool.device
        return DecodePlan(
            torch.from_numpy(self.slots(step).astype(np.int32)).to(device),
            torch.from_numpy((step.cells // self.pool.page_tokens).astype(np.int32)).to(device),
            torch.tensor([s.start for s in step.segments], dtype=torch.int32, device=device),
            torch.from_numpy(np.concatenate([s.views for s in step.segments])).to(device),
            torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)).to(device),
            *self.tables(len(step.segments), max(counts)),
        )

    def _prefill_plan(self, step: Step) -> PrefillPlan:
        rows, first_view = [], 0
        for s in step.segments:
            rows.append((s.first, s.count, first_view, len(s.views), s.start))
            first_view += len(s.views)
        views = np.ascontiguousarray(np.concatenate([s.views for s in step.segments]))
        plan = plan_segments(
            torch.tensor(rows, dtype=torch.int32), torch.from_numpy(views), self.pool.rope, self.pool.shape,
            query_heads=self.heads, device=self.pool.device,
        )  # fmt: skip
        order = _order_of(step.cells, self.pool.page_tokens)
        slots = torch.from_numpy(step.cells if order is None else step.cells[order])
        device = self.pool.device
        return PrefillPlan(slots.to(device), plan, None if order is None else torch.from_numpy(order).to(device))

    def run(self, layer: int, qkv: Heads, plan: Plan) -> torch.Tensor:
        """Write K and V of the step's rows, and return what Q sees: [rows, heads, head_dim]."""
        q, k, v = qkv if self.pool.scales else (part.to(self.pool.dtype) for part in qkv)
        if isinstance(plan, PrefillPlan) and plan.order is not None:
            k, v = k[plan.order], v[plan.order]
        return self._attended(layer, (q, k, v), plan).to(qkv[0].dtype)

    def _attended(self, layer: int, qkv: Heads, plan: Plan) -> torch.Tensor:
        return self._within(layer, qkv, plan, self.pool.of_layer(layer))

    def _within(self, layer: int, qkv: Heads, plan: Plan, pages: Stored) -> torch.Tensor:
        """Append to a layer's pages and attend to them."""
        bounds = self.pool.bounds[layer] if self.pool.bounds else None
        k_pages, v_pages, scales = *pages[:2], scales_in(pages)
        q, k, v = qkv
        rope_append(k, v, plan.slots, self.pool.rope, k_pages, v_pages, bounds=bounds, **scales)
        if isinstance(plan, PrefillPlan):
            return segment_prefill(q, k_pages, v_pages, plan.segments, **scales)
        return self._decode(layer, q, plan, pages)

    def _decode(self, layer: int, q: torch.Tensor, plan: DecodePlan, pages: Stored) -> torch.Tensor:
        k_pages, v_pages = pages[:2]
        rope, scales = self.pool.rope, scales_in(pages)
        where = (plan.views, plan.view_start, plan.positions)
        if self.sparse is None or plan.selection is None:
            return paged_decode(q, k_pages, v_pages, *where, rope, workspace=plan.workspace, **scales)
        chosen = self.select(layer, q, plan, plan.selection, self.sparse)
        return paged_decode_selected(
            q,
            k_pages,
            v_pages,
            chosen.views,
            chosen.count,
            plan.positions,
            rope,
            workspace=plan.workspace,
            after_choice=True,
            **scales,
        )

    def select(self, layer: int, q: torch.Tensor, plan: DecodePlan, selection: Selection, sparse: Sparse) -> Selection:
        """Choose the views that each KV head reads."""
        bounds = self.pool.bounds[layer]
        return block_select(
            q.to(bounds.dtype), bounds, plan.views, plan.view_start, plan.positions, self.pool.rope, selection,
            top_k=sparse.blocks, sink=sparse.sink, recent=sparse.recent,
        )  # fmt: skip


def _order_of(
    cells: np.ndarray[tuple[int], np.dtype[np.int64]], page_tokens: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]] | None:
    """Return an order of rows in which each page's are neighbours; None when they are so already."""
    pages = cells // page_tokens
    runs = 1 + int(np.count_nonzero(np.diff(pages)))
    return None if runs == len(np.unique(pages)) else np.argsort(cells, kind="stable")
