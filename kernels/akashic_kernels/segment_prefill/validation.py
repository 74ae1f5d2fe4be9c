"""What segment prefill refuses: each check names the argument, what it is and what it must be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from akashic_kernels.errors import KernelInputError
from akashic_kernels.segment_prefill.plan import SEGMENT_COLUMNS, visible_tokens
from akashic_kernels.views import PageShape, check_pages, check_query, check_tensor, check_view_values

if TYPE_CHECKING:
    from torch import Tensor

    from akashic_kernels.segment_prefill.plan import SegmentPlan

KERNEL = "segment_prefill"
POSITION_LIMIT = 1 << 30
GROUP_MOST = 64


def check_segments(segments: Tensor, views: Tensor, shape: PageShape) -> int:
    """Check the host's tables against each other and the pool; return how many queries the segments hold."""
    import torch

    cpu = torch.device("cpu")
    check_tensor(KERNEL, "segments", segments, dtype=torch.int32, shape=(None, len(SEGMENT_COLUMNS)), device=cpu)
    check_tensor(KERNEL, "views", views, dtype=torch.int32, shape=(None, 4), device=cpu)
    check_view_values(KERNEL, views, torch.tensor([0, len(views)], dtype=torch.int32), shape)
    start, count, view_start, view_count, position = segments.to(torch.int64).unbind(1)
    if bool((count < 1).any()) or bool((start != torch.cumsum(count, 0) - count).any()):
        raise KernelInputError(KERNEL, "segments must hold a query or more each and follow each other from query 0 on")
    if bool(((view_start < 0) | (view_count < 1) | (view_start + view_count > len(views))).any()):
        raise KernelInputError(KERNEL, f"a segment's views lie outside of the {len(views)} views")
    if bool((torch.cat((position, position + count, views[:, 3])).abs() >= POSITION_LIMIT).any()):
        raise KernelInputError(KERNEL, f"positions and bases must stay within {POSITION_LIMIT}")
    seen = visible_tokens(views)
    short = seen[view_start + view_count] - seen[view_start] < count
    if bool(short.any()):
        worst = int(short.nonzero()[0])
        raise KernelInputError(
            KERNEL,
            f"segment {worst} has {int(count[worst])} queries but sees fewer tokens; its own must be its last ones",
        )
    return int(count.sum())


def check_heads(query_heads: int, shape: PageShape, rotary_dim: int) -> None:
    """Refuse groups of query heads that a tile can't hold."""
    group, rest = divmod(query_heads, max(shape.kv_heads, 1))
    if rest or not 1 <= group <= GROUP_MOST:
        raise KernelInputError(
            KERNEL,
            f"{query_heads} query heads can't share {shape.kv_heads} KV heads evenly, at most {GROUP_MOST} to one",
        )
    if rotary_dim > shape.head_dim:
        raise KernelInputError(KERNEL, f"rotary_dim {rotary_dim} is greater than head_dim {shape.head_dim}")


def check_arguments(
    plan: SegmentPlan,
    query: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    out: Tensor | None,
) -> None:
    """Check one layer's tensors against the plan."""
    shape = check_pages(KERNEL, k_pages, v_pages, k_scale, v_scale)
    if shape != plan.shape:
        raise KernelInputError(KERNEL, f"the plan was made for pages of {tuple(plan.shape)}, these are {tuple(shape)}")
    check_query(KERNEL, query, k_pages, shape, plan.rope)
    wanted = (plan.query_count, plan.query_heads, shape.head_dim)
    for name, tensor in (("query", query), ("out", out)):
        if tensor is None:
            continue
        check_tensor(KERNEL, name, tensor, dtype=query.dtype, shape=wanted, device=plan.device, contiguous=False)
        if tensor.stride()[1:] != (shape.head_dim, 1):
            raise KernelInputError(
                KERNEL, f"{name} must be dense in a token's heads; its strides are {tensor.stride()}"
            )
