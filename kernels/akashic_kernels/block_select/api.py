"""Score views by their bounds and choose, for each KV head, those that a sparse decode step reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from akashic_kernels.backend import Backend, can_overlap, choose, launching, power_of_two
from akashic_kernels.block_select import validation
from akashic_kernels.views import PageShape, check_query, check_views

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from akashic_kernels.rope import Rope

KERNEL = "block_select"


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """What `block_select` writes; one launch at a time may use it.

    `views` int32 [batch, kv_heads, most, 4], `index` int32 [batch, kv_heads, most] of the same views in their row,
    `count` int32 [batch, kv_heads]; behind `count` stand views of length 0 and indices of -1. `scores` float32
    [batch, kv_heads, max_views] holds each view's score, nothing behind a row's last view.
    """

    views: Tensor
    index: Tensor
    count: Tensor
    scores: Tensor
    arrived: Tensor


def make_selection(
    batch: int, kv_heads: int, max_views: int, *, top_k: int, sink: int, recent: int, device: torch.device | str
) -> Selection:
    """Allocate the lists of `block_select` for rows of at most `max_views` views."""
    import torch

    validation.check_numbers(KERNEL, top_k, sink, recent, max_views)
    most = top_k + sink + recent

    def make(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.zeros(batch, kv_heads, *shape, dtype=dtype, device=device)

    return Selection(make(most, 4), make(most), make(), make(max_views, dtype=torch.float32), make())


def block_select(
    query: Tensor,
    bounds: Tensor,
    views: Tensor,
    view_start: Tensor,
    query_position: Tensor,
    rope: Rope,
    selection: Selection,
    *,
    top_k: int,
    sink: int = 1,
    recent: int = 1,
    backend: Backend | None = None,
) -> Selection:
    """Fill `selection` for each row's query [batch, q_heads, head_dim]; rows have at most the views it was made for."""
    shape = check_bounds_shape(bounds, query)
    batch, group = check_query(KERNEL, query, bounds, shape, rope)
    check_views(KERNEL, views, view_start, query_position, batch, query.device)
    max_views = selection.scores.shape[2]
    validation.check_numbers(KERNEL, top_k, sink, recent, max_views)
    most = top_k + sink + recent
    validation.check_selection(KERNEL, selection, batch, shape.kv_heads, most, query.device)
    if choose(KERNEL, query, backend) == "reference":
        _run_reference(query, bounds, views, view_start, query_position, rope, selection, top_k, sink, recent)
        return selection
    if batch == 0:
        return selection
    from akashic_kernels.block_select.triton import block_select_kernel

    block, warps = launch_shape(max_views)
    with launching(KERNEL):
        block_select_kernel[(-(-max_views // block), shape.kv_heads, batch)](
            query, bounds, views, view_start, query_position, rope.phase_step, selection.scores, selection.views,
            selection.index, selection.count, selection.arrived, query.stride(0), query.stride(1), max_views,
            rope.attention_scale, top_k, sink, recent,
            KV_HEADS=shape.kv_heads, GROUP=group, HEAD_DIM=shape.head_dim, PAIRS_BLOCK=power_of_two(shape.head_dim // 2),
            ROTARY=rope.rotary_dim, INTERLEAVED=rope.layout == "interleaved",
            HARDWARE=query.is_cuda, OVERLAP=query.is_cuda and can_overlap(query.device),
            BLOCK=block, MOST=most, MOST_BLOCK=power_of_two(most), VIEWS_BLOCK=power_of_two(max_views), num_warps=warps,
        )  # fmt: skip
    return selection


def launch_shape(max_views: int) -> tuple[int, int]:
    """Give how many views a program scores, and its warps, as measured on an H200."""
    return min(64 if max_views <= 1024 else 128, power_of_two(max_views)), 16


def check_bounds_shape(bounds: Tensor, query: Tensor) -> PageShape:
    """Give the shape of the pool that `bounds` belong to, the page size being of no concern here."""
    kv_heads = validation.check_bounds_for_query(KERNEL, bounds, query)
    return PageShape(bounds.shape[0], kv_heads, 0, bounds.shape[3])


def _run_reference(
    query: Tensor,
    bounds: Tensor,
    views: Tensor,
    view_start: Tensor,
    query_position: Tensor,
    rope: Rope,
    selection: Selection,
    top_k: int,
    sink: int,
    recent: int,
) -> None:
    import torch

    from akashic_kernels.block_select.reference import choose_row, score_row

    selection.views.zero_()
    selection.index.fill_(-1)
    starts = view_start.tolist()
    for row in range(query.shape[0]):
        of_row = views[starts[row] : starts[row + 1]]
        scores = score_row(query[row], bounds, of_row, query_position[row], rope, compute=torch.float32)
        selection.scores[row, :, : of_row.shape[0]] = scores
        for head, index in enumerate(choose_row(scores, of_row, top_k, sink, recent)):
            selection.count[row, head] = index.shape[0]
            selection.index[row, head, : index.shape[0]] = index
            selection.views[row, head, : index.shape[0]] = of_row[index]
