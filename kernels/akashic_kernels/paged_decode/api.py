"""Decode attention: one query token a row, over the row's views or over a list of views a KV head."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from akashic_kernels.backend import Backend, can_overlap, choose, launching, power_of_two
from akashic_kernels.paged_decode import validation
from akashic_kernels.views import PageShape, check_pages, check_query, check_views

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from akashic_kernels.rope import Rope

KERNEL = "paged_decode"
_LOG2_E = 1.4426950408889634
# Elements of partial results that a program merges at a time: 128 registers a thread.
MERGE_ELEMENTS = 16384


@dataclass(frozen=True, slots=True, eq=False)
class DecodeWorkspace:
    """Room for partial results; one launch at a time may use it, and each leaves `arrived` at zero."""

    partial: Tensor
    partial_lse: Tensor
    arrived: Tensor

    @property
    def splits(self) -> int:
        """Parts that a row's views are cut into, each a program of its own."""
        return self.partial.shape[2]


def make_workspace(
    batch: int,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    device: torch.device | str,
    *,
    splits: int | None = None,
    tiles: int | None = None,
) -> DecodeWorkspace:
    """Allocate a workspace; `splits` by default fills the GPU twice over.

    tiles: what no list has more of (`selected_tiles`). Then the fewest splits are made of which none gets more tiles than
    with the default: they end together, and there is less to merge.
    """
    import torch

    if splits is None:
        splits = _default_splits(batch * kv_heads, torch.device(device))
        if tiles is not None:
            splits = -(-tiles // -(-tiles // splits))
    group = q_heads // kv_heads
    return DecodeWorkspace(
        torch.empty(batch, kv_heads, splits, group, head_dim, dtype=torch.float32, device=device),
        torch.empty(batch, kv_heads, splits, group, power_of_two(head_dim) // 2, dtype=torch.float32, device=device),
        torch.zeros(batch, kv_heads, dtype=torch.int32, device=device),
    )


def paged_decode(
    query: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    views: Tensor,
    view_start: Tensor,
    query_position: Tensor,
    rope: Rope,
    *,
    softmax_scale: float | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    workspace: DecodeWorkspace | None = None,
    backend: Backend | None = None,
) -> Tensor:
    """Attend with each row's query [batch, q_heads, head_dim] to all of its views; gives `out` of the same shape.

    `lse` float32 [batch, q_heads] takes the natural logarithm of the softmax's sums, with which results over parts of
    a context merge. A row without visible tokens gives 0 and minus infinity. Without `workspace` one is allocated.
    """
    shape = check_pages(KERNEL, k_pages, v_pages, k_scale, v_scale)
    batch, _ = check_query(KERNEL, query, k_pages, shape, rope)
    check_views(KERNEL, views, view_start, query_position, batch, query.device)
    arguments = (query, k_pages, v_pages, query_position, rope, softmax_scale, k_scale, v_scale, out, lse, workspace)
    return _run(views, view_start, False, *arguments, backend)


def paged_decode_selected(
    query: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    selected: Tensor,
    selected_count: Tensor,
    query_position: Tensor,
    rope: Rope,
    *,
    softmax_scale: float | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    workspace: DecodeWorkspace | None = None,
    after_choice: bool = False,
    backend: Backend | None = None,
) -> Tensor:
    """Attend like `paged_decode`, each KV head to its own views: selected[row, head, : selected_count[row, head]].

    `selected` int32 [batch, kv_heads, most, 4] as `block_select` writes it. `after_choice` says that `block_select` for
    this query is the launch just before this one on the stream; this one then begins while that one ends.
    """
    shape = check_pages(KERNEL, k_pages, v_pages, k_scale, v_scale)
    batch, _ = check_query(KERNEL, query, k_pages, shape, rope)
    validation.check_selected(KERNEL, selected, selected_count, query_position, batch, shape, query.device)
    arguments = (query, k_pages, v_pages, query_position, rope, softmax_scale, k_scale, v_scale, out, lse, workspace)
    return _run(selected, selected_count, True, *arguments, backend, after_choice)


def _run(
    views: Tensor,
    starts: Tensor,
    selected: bool,
    query: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    query_position: Tensor,
    rope: Rope,
    softmax_scale: float | None,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    out: Tensor | None,
    lse: Tensor | None,
    workspace: DecodeWorkspace | None,
    backend: Backend | None,
    after_choice: bool = False,
) -> Tensor:
    import torch

    scale = validation.check_scale(KERNEL, softmax_scale, query.shape[2])
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device) if out is None else out
    lse = torch.empty(query.shape[:2], dtype=torch.float32, device=query.device) if lse is None else lse
    validation.check_out(KERNEL, out, lse, query)
    if choose(KERNEL, query, backend) == "reference":
        from akashic_kernels.paged_decode.reference import attend

        lists = _lists(views, starts, selected)
        result, sums = attend(
            query,
            k_pages,
            v_pages,
            lists,
            query_position,
            rope,
            scale,
            k_scale,
            v_scale,
            compute=torch.float32,
        )
        out.copy_(result)
        lse.copy_(sums)
        return out
    _launch(
        views, starts, selected, query, k_pages, v_pages, query_position, rope, scale, k_scale, v_scale, out, lse,
        workspace, after_choice and query.is_cuda and can_overlap(query.device),
    )  # fmt: skip
    return out


def _lists(views: Tensor, starts: Tensor, selected: bool) -> list[list[Tensor]]:
    if selected:
        counts = starts.tolist()
        return [[views[b, h, :n] for h, n in enumerate(heads)] for b, heads in enumerate(counts)]
    bounds = starts.tolist()
    return [[views[first:last]] for first, last in pairwise(bounds)]


def _launch(
    views: Tensor,
    starts: Tensor,
    selected: bool,
    query: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    query_position: Tensor,
    rope: Rope,
    scale: float,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    out: Tensor,
    lse: Tensor,
    workspace: DecodeWorkspace | None,
    after_choice: bool,
    shape: LaunchShape | None = None,
) -> None:
    import torch

    from akashic_kernels.paged_decode.triton import paged_decode_kernel

    batch, q_heads, head_dim = query.shape
    _, kv_heads, page_size, _ = k_pages.shape
    group = q_heads // kv_heads
    if batch == 0:
        return
    workspace = workspace or make_workspace(batch, q_heads, kv_heads, head_dim, query.device)
    validation.check_workspace(KERNEL, workspace, batch, group, PageShape(*k_pages.shape))
    splits = workspace.splits
    head_block, merge_rows = power_of_two(head_dim), power_of_two(group)
    precise = query.dtype == torch.float32
    shape = shape or launch_shape(head_block, page_size, k_pages.dtype, _shared_bytes(query.device))
    with launching(KERNEL):
        paged_decode_kernel[(splits, kv_heads, batch)](
            query, k_pages, v_pages, k_scale, v_scale, views, starts, query_position, rope.phase_step,
            out, lse, workspace.partial, workspace.partial_lse, workspace.arrived,
            query.stride(0), query.stride(1), views.shape[2] if selected else 0, splits,
            scale * _LOG2_E, rope.attention_scale,
            KV_HEADS=kv_heads, GROUP=group, GROUP_BLOCK=max(16, merge_rows), MERGE_ROWS=merge_rows,
            HEAD_DIM=head_dim, HEAD_BLOCK=head_block, ROTARY=rope.rotary_dim,
            INTERLEAVED=rope.layout == "interleaved", PAGE=page_size, TILE=shape.tile,
            SPLITS_BLOCK=power_of_two(splits),
            MERGE_CHUNK=max(1, min(power_of_two(splits), MERGE_ELEMENTS // (merge_rows * head_block))),
            SELECTED=selected, QUANTISED=k_scale is not None, PRECISE=precise,
            STAGES=shape.stages, AFTER_CHOICE=after_choice, num_warps=shape.warps,
            maxnreg=shape.registers, **({"launch_pdl": True} if after_choice else {}),
        )  # fmt: skip


class LaunchShape(NamedTuple):
    """How a program walks a page: tokens a step, pipeline stages, warps."""

    tile: int
    stages: int
    warps: int
    registers: int | None = None


def selected_tiles(views: int, page_size: int, dtype: torch.dtype) -> int:
    """Count the tiles of a list of `views` chosen pages, for `make_workspace`."""
    return views * page_size // _tile(page_size, dtype)


def _tile(page_size: int, dtype: torch.dtype) -> int:
    return min(page_size, 64 if dtype.itemsize <= 2 else 32)


def launch_shape(head_block: int, page_size: int, dtype: torch.dtype, shared_bytes: int) -> LaunchShape:
    """Choose a shape of which two programs fit into the `shared_bytes` of a multiprocessor."""
    tile = _tile(page_size, dtype)
    tile_bytes = 2 * head_block * tile * dtype.itemsize
    return LaunchShape(tile, max(2, min(4, shared_bytes // 2 // tile_bytes)), 4)


def _shared_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return 64 << 10
    from triton.runtime import driver

    return int(driver.active.utils.get_device_properties(device.index or 0)["max_shared_mem"])


def _default_splits(lists: int, device: torch.device) -> int:
    import torch

    if device.type != "cuda":
        return 4
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    splits = max(1, min(validation.SPLITS_MOST, round(2 * processors / lists)))
    # A few programs less than fit, where that saves the merge a round of loads.
    return splits - splits % 32 if splits % 32 <= splits // 16 else splits
