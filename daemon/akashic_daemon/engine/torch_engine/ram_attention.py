"""Attention over KV in RAM: sparse decode through the hot tiles, every other step through the stage, layer by layer."""

from __future__ import annotations

import logging

import numpy as np
import torch

from akashic_daemon.engine.torch_engine.architecture import Architecture
from akashic_daemon.engine.torch_engine.attention import DecodePlan, Heads, PagedAttention, Plan, Sparse
from akashic_daemon.engine.torch_engine.pool import scales_in
from akashic_daemon.engine.torch_engine.ram_pool import RamPool
from akashic_daemon.engine.torch_engine.step import Step
from akashic_daemon.engine.torch_engine.views import PAGE, Longs
from akashic_kernels.paged_decode import paged_decode_selected
from akashic_kernels.rope_append import rope_append

_log = logging.getLogger(__name__)


class RamAttention(PagedAttention):
    """Reads and writes one pool in RAM. What a step sees doesn't depend on which way it takes."""

    def __init__(self, shape: Architecture, pool: RamPool, sparse: Sparse | None = None) -> None:
        super().__init__(shape, pool, sparse)
        self._ram = pool
        self._hot = pool.hot if sparse is not None else None
        self._through_hot = False
        self._pages = self._slots = torch.empty(0)
        """Of the rows of the step: their open pages, and where these stand."""
        self._warned = False

    def records(self, step: Step) -> bool:
        """Tell if the hot tiles serve a step: staging is the host's work."""
        return self._fits(step)

    def _fits(self, step: Step) -> bool:
        hot, sparse = self._hot, self.sparse
        if hot is None or sparse is None or not step.single:
            return False
        written = len(set((step.cells // self.pool.page_tokens).tolist()))
        fits = written <= hot.open_pages and len(step.segments) * sparse.most <= hot.slots
        if not fits and not self._warned:
            self._warned = True
            _log.warning(
                "a step of %d sequences reads more pages than the GPU keeps: it takes every layer's pages from RAM "
                "(raise cache.gpu_kv_tokens, or lower schedule.max_running)",
                len(step.segments),
            )
        return fits

    def slots(self, step: Step) -> Longs:
        """Make room for what a step adds: in open pages, or in the stage, where pages keep their numbers."""
        pages, tokens = step.cells // self.pool.page_tokens, self.pool.page_tokens
        self._through_hot = self._fits(step)
        if self._hot is not None and self._through_hot:
            self._ram.stage.settle()
            return np.array(self._hot.open(pages.tolist()), np.int64) * tokens + step.cells % tokens
        written = np.unique(pages)
        seen = np.unique(np.concatenate([written, *(segment.views[:, PAGE] for segment in step.segments)]))
        self._ram.begin_stage(seen.tolist(), written.tolist())
        return step.cells

    def plan(self, step: Step) -> Plan:
        """Make the tables of a step, and bring its first pages on their way."""
        if not step.single:
            self.slots(step)
        return super().plan(step)

    def _attended(self, layer: int, qkv: Heads, plan: Plan) -> torch.Tensor:
        if self._through_hot and isinstance(plan, DecodePlan):
            return self._in_hot(layer, qkv, plan)
        stage = self._ram.stage
        seen = self._within(layer, qkv, plan, stage.layer(layer))
        stage.keep(layer)
        return seen

    def _in_hot(self, layer: int, qkv: Heads, plan: DecodePlan) -> torch.Tensor:
        hot, sparse, selection = self._hot, self.sparse, plan.selection
        assert hot is not None
        assert sparse is not None
        assert selection is not None
        q, k, v = qkv
        pages = hot.of_layer(layer)
        k_tiles, v_tiles, scales = *pages[:2], scales_in(pages)
        rope_append(k, v, plan.slots, self.pool.rope, k_tiles, v_tiles, bounds=hot.open_bounds[layer], **scales)
        if layer == 0:  # the same for all layers
            written = plan.slots >= 0
            self._pages = torch.where(written, plan.pages, self.pool.shape.pages).long()
            self._slots = torch.where(written, plan.slots // self.pool.page_tokens, 0).long()
        hot.publish_bounds(layer, self._pages, self._slots)
        hot.admit(layer, self.select(layer, q, plan, selection, sparse), plan.views, plan.view_start)
        found = paged_decode_selected(
            q, k_tiles, v_tiles, selection.views, selection.count, plan.positions, self.pool.rope,
            workspace=plan.workspace, **scales,
        )  # fmt: skip
        hot.bring_ahead(layer)
        return found
