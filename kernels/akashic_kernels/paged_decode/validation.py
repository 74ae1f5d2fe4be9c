"""What decode attention accepts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from akashic_kernels.errors import KernelInputError
from akashic_kernels.views import check_tensor

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from akashic_kernels.paged_decode.api import DecodeWorkspace
    from akashic_kernels.views import PageShape

SPLITS_MOST = 128


def check_scale(kernel: str, softmax_scale: float | None, head_dim: int) -> float:
    """Give the softmax scale, 1 / sqrt(head_dim) if none is given."""
    if softmax_scale is None:
        return 1.0 / math.sqrt(head_dim)
    if not (math.isfinite(softmax_scale) and softmax_scale > 0):
        raise KernelInputError(kernel, f"softmax_scale must be positive and finite, not {softmax_scale}")
    return softmax_scale


def check_out(kernel: str, out: Tensor, lse: Tensor, query: Tensor) -> None:
    """Check the outputs' type, shape and place."""
    import torch

    check_tensor(kernel, "out", out, dtype=query.dtype, shape=tuple(query.shape), device=query.device)
    check_tensor(kernel, "lse", lse, dtype=torch.float32, shape=tuple(query.shape[:2]), device=query.device)


def check_selected(
    kernel: str,
    selected: Tensor,
    selected_count: Tensor,
    query_position: Tensor,
    batch: int,
    shape: PageShape,
    device: torch.device,
) -> None:
    """Check lists of views for each row and KV head, and the rows' positions."""
    import torch

    heads, int32 = (batch, shape.kv_heads), torch.int32
    check_tensor(kernel, "selected", selected, dtype=int32, shape=(*heads, None, 4), device=device)
    check_tensor(kernel, "selected_count", selected_count, dtype=int32, shape=heads, device=device)
    check_tensor(kernel, "query_position", query_position, dtype=int32, shape=(batch,), device=device)


def check_workspace(kernel: str, workspace: DecodeWorkspace, batch: int, group: int, shape: PageShape) -> None:
    """Refuse a workspace that was made for other shapes."""
    splits = workspace.splits
    if not 1 <= splits <= SPLITS_MOST:
        raise KernelInputError(kernel, f"splits must be 1 to {SPLITS_MOST}, not {splits}")
    wanted = (batch, shape.kv_heads, splits, group, shape.head_dim)
    if tuple(workspace.partial.shape) != wanted:
        raise KernelInputError(
            kernel, f"the workspace was made for {tuple(workspace.partial.shape)}, and this call needs {wanted}"
        )
