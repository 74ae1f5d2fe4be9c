"""The Triton kernel that widens bounds, one program a run and KV head."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def update_bounds_kernel(
    bounds,
    k_pages,
    k_scale,
    runs,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    PAGE: tl.constexpr,
    QUANTISED: tl.constexpr,
    OUTWARDS: tl.constexpr,
):
    """Widen the bounds of one head of one run's page."""
    run = tl.program_id(0)
    head = tl.program_id(1)
    page = tl.load(runs + run * 3).to(tl.int64)
    offset = tl.load(runs + run * 3 + 1)
    length = tl.load(runs + run * 3 + 2)
    if length > 0:
        d = tl.arange(0, HEAD_BLOCK)
        slot = tl.arange(0, PAGE)
        inside = d < HEAD_DIM
        in_run = (slot >= offset) & (slot < offset + length)
        loaded = in_run[:, None] & inside[None, :]
        tile = page * KV_HEADS + head
        at = k_pages + tile * (PAGE * HEAD_DIM) + slot[:, None] * HEAD_DIM + d[None, :]
        keys = tl.load(at, mask=loaded, other=0.0).to(tl.float32)
        if QUANTISED:
            keys *= tl.load(k_scale + tile * PAGE + slot, mask=in_run, other=0.0)[:, None]
        low = tl.min(tl.where(loaded, keys, float("inf")), 0)
        high = tl.max(tl.where(loaded, keys, -float("inf")), 0)
        if OUTWARDS > 0:
            low -= tl.abs(low) * OUTWARDS
            high += tl.abs(high) * OUTWARDS
        low_at = bounds + tile * (2 * HEAD_DIM) + d
        high_at = low_at + HEAD_DIM
        if offset > 0:
            low = tl.minimum(low, tl.load(low_at, mask=inside, other=0.0).to(tl.float32))
            high = tl.maximum(high, tl.load(high_at, mask=inside, other=0.0).to(tl.float32))
        tl.store(low_at, low.to(bounds.dtype.element_ty), mask=inside)
        tl.store(high_at, high.to(bounds.dtype.element_ty), mask=inside)
