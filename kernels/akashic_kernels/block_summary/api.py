"""Bounds of the keys of pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from akashic_kernels.backend import Backend, choose, launching, power_of_two
from akashic_kernels.block_summary import reference
from akashic_kernels.block_summary.validation import check_bounds
from akashic_kernels.views import check_pages, check_tensor

if TYPE_CHECKING:
    import torch
    from torch import Tensor

KERNEL = "block_summary"


def make_bounds(pages: int, kv_heads: int, head_dim: int, *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """Allocate bounds [pages, kv_heads, 2, head_dim]; a page's are set by the run that begins at its slot 0."""
    import torch

    return torch.zeros(pages, kv_heads, 2, head_dim, dtype=dtype, device=device)


def update_bounds(
    bounds: Tensor,
    k_pages: Tensor,
    runs: Tensor,
    *,
    k_scale: Tensor | None = None,
    backend: Backend | None = None,
) -> None:
    """Widen `bounds` by the keys just written: `runs` int32 [n, 3] of (page, offset, length).

    A page stands in at most one run of a call; a run of length 0 does nothing; one from slot 0 begins the page anew.
    """
    import torch

    shape = check_pages(KERNEL, k_pages, None, k_scale, None)
    check_bounds(KERNEL, bounds, k_pages, shape)
    check_tensor(KERNEL, "runs", runs, dtype=torch.int32, shape=(None, 3), device=k_pages.device)
    if runs.shape[0] == 0:
        return
    if choose(KERNEL, k_pages, backend) == "reference":
        reference.update(bounds, k_pages, runs, k_scale)
        return
    from akashic_kernels.block_summary.triton import update_bounds_kernel

    widened = k_scale is not None and bounds.dtype != torch.float32
    with launching(KERNEL):
        update_bounds_kernel[(runs.shape[0], shape.kv_heads)](
            bounds,
            k_pages,
            k_scale,
            runs,
            KV_HEADS=shape.kv_heads,
            HEAD_DIM=shape.head_dim,
            HEAD_BLOCK=power_of_two(shape.head_dim),
            PAGE=shape.page_size,
            QUANTISED=k_scale is not None,
            OUTWARDS=reference.OUTWARDS if widened else 0.0,
            num_warps=4,
        )
