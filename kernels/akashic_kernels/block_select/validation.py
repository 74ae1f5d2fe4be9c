"""What the choice of views accepts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from akashic_kernels.errors import KernelInputError
from akashic_kernels.views import check_tensor

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from akashic_kernels.block_select.api import Selection

# The last program of a head holds all its scores in registers.
VIEWS_MOST = 32768


def check_numbers(kernel: str, top_k: int, sink: int, recent: int, max_views: int) -> None:
    """Refuse counts that make no list, and rows too long for one program."""
    if min(top_k, sink, recent) < 0 or top_k + sink + recent == 0:
        raise KernelInputError(
            kernel, f"top_k {top_k}, sink {sink} and recent {recent} must not be negative nor all zero"
        )
    if not 1 <= max_views <= VIEWS_MOST:
        raise KernelInputError(kernel, f"max_views must be 1 to {VIEWS_MOST}, not {max_views}")


def check_bounds_for_query(kernel: str, bounds: Tensor, query: Tensor) -> int:
    """Check bounds against a query; give the number of KV heads."""
    import torch

    floats = (torch.bfloat16, torch.float16, torch.float32)
    check_tensor(kernel, "bounds", bounds, dtype=floats, shape=(None, None, 2, query.shape[-1]), device=query.device)
    return int(bounds.shape[1])


def check_selection(
    kernel: str, selection: Selection, batch: int, kv_heads: int, most: int, device: torch.device
) -> None:
    """Refuse a selection made for other numbers."""
    import torch

    heads = (batch, kv_heads)
    int32 = torch.int32
    check_tensor(kernel, "selection.views", selection.views, dtype=int32, shape=(*heads, most, 4), device=device)
    check_tensor(kernel, "selection.index", selection.index, dtype=int32, shape=(*heads, most), device=device)
    check_tensor(kernel, "selection.count", selection.count, dtype=int32, shape=heads, device=device)
    check_tensor(kernel, "selection.scores", selection.scores, dtype=torch.float32, shape=(*heads, None), device=device)
    check_tensor(kernel, "selection.arrived", selection.arrived, dtype=int32, shape=heads, device=device)
