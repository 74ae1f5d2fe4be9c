"""Attention over paged KV, in torch alone: what CPUs run, and what defines the answer.

R(m) q . R(base + slot) k is what a token at position m sees of one in a slot: K lies turned by its slot, so the base is
turned in here, each step anew.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from akashic_daemon.engine.torch_engine.architecture import Architecture
from akashic_daemon.engine.torch_engine.pool import KvPool
from akashic_daemon.engine.torch_engine.step import Segment, Step
from akashic_daemon.engine.torch_engine.turning import turned
from akashic_daemon.engine.torch_engine.views import cells_of

Phasors = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class _Sight:
    """What one segment's rows see: cells, the phasors of their bases, and for several rows which see which."""

    rows: slice
    cells: torch.Tensor
    bases: Phasors
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """One step's tables, the same for every layer."""

    cells: torch.Tensor
    slots: Phasors
    positions: Phasors
    sights: tuple[_Sight, ...]


class TorchAttention:
    """Reads and writes one pool."""

    def __init__(self, shape: Architecture, pool: KvPool) -> None:
        self._pool = pool
        self._groups = shape.heads // shape.kv_heads

    def plan(self, step: Step) -> Plan:
        """Make the tables of a step."""
        cells = torch.from_numpy(step.cells)
        positions = np.concatenate([np.arange(s.start, s.start + s.count) for s in step.segments])
        return Plan(
            cells,
            self._phasors(cells % self._pool.page_tokens),
            self._phasors(torch.from_numpy(positions)),
            tuple(map(self._sight, step.segments)),
        )

    def _phasors(self, positions: torch.Tensor) -> Phasors:
        return self._pool.turning.phasors(positions)

    def _sight(self, segment: Segment) -> _Sight:
        cells, positions = cells_of(segment.views, self._pool.page_tokens)
        bases = self._phasors(torch.from_numpy(positions - cells % self._pool.page_tokens))
        mask = None
        if segment.count > 1:
            own = segment.start + np.arange(segment.count)
            mask = torch.from_numpy(positions[None, :] <= own[:, None])
        return _Sight(slice(segment.first, segment.first + segment.count), torch.from_numpy(cells), bases, mask)

    def run(self, layer: int, qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor], plan: Plan) -> torch.Tensor:
        """Write K and V of the step's rows, and return what Q sees: [rows, heads, head_dim]."""
        q, k, v = qkv
        scale = self._pool.turning.scale
        self._pool.write(layer, plan.cells, turned(k, *plan.slots, scale), v)
        q = turned(q, *plan.positions, scale)
        out = torch.empty_like(q)
        for sight in plan.sights:
            seen_k, seen_v = self._pool.read(layer, sight.cells)
            out[sight.rows] = self._attend(q[sight.rows], turned(seen_k.to(q.dtype), *sight.bases), seen_v, sight.mask)
        return out

    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        heads_first = (q.transpose(0, 1)[None], k.transpose(0, 1)[None], v.to(q.dtype).transpose(0, 1)[None])
        out = torch.nn.functional.scaled_dot_product_attention(
            *heads_first, attn_mask=mask, enable_gqa=self._groups > 1
        )
        return out[0].transpose(0, 1)
