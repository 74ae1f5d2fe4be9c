"""Ragged prefill over paged, position-free KV: the plan of a step, and its attention in one layer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from akashic_kernels.backend import Backend, choose, launching, power_of_two
from akashic_kernels.rope.reference import cos_sin
from akashic_kernels.segment_prefill.plan import KernelTables, SegmentPlan, TileTables, cut_tiles
from akashic_kernels.segment_prefill.reference import segment_prefill_reference
from akashic_kernels.segment_prefill.validation import KERNEL, check_arguments, check_heads, check_segments

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from akashic_kernels.rope import Rope
    from akashic_kernels.views import PageShape

LOG2_E = 1.4426950408889634
INTERPRETED_PROGRAMS = 16
"""Programs that the interpreter's plan aims for: enough that tests see split tiles."""
MERGE_ROWS = 16


def plan_segments(
    segments: Tensor,
    views: Tensor,
    rope: Rope,
    shape: PageShape,
    *,
    query_heads: int,
    device: torch.device | str,
    backend: Backend | None = None,
) -> SegmentPlan:
    """Check and cut a step's segments; the plan serves each layer of this shape and rope.

    `segments` int32 [n, 5] on the CPU: query_start, query_count, view_start, view_count, position_start. Segments follow
    each other in the query. A segment's views, in order, hold what its queries may see, and end with the `query_count`
    tokens of the queries themselves, already written to pages: query i sees everything up to its own token.
    `views` int32 [m, 4] on the CPU: page, offset, length, base; segments may share them. `shape` is PageShape(*k_pages.shape).
    """
    import torch

    check_heads(query_heads, shape, rope.rotary_dim)
    query_count = check_segments(segments, views, shape)
    place = torch.empty(0, device=device)
    kernel = None
    if choose(KERNEL, place, backend) == "triton" and query_count:
        kernel = _kernel_tables(segments, views, rope, query_heads // shape.kv_heads, shape, place.device)
    return SegmentPlan(segments, views, rope, query_count, query_heads, shape, place.device, kernel)


def segment_prefill(
    query: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    plan: SegmentPlan,
    *,
    softmax_scale: float | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Attend from `query` [tokens, q_heads, head_dim], not rotated, as the plan says; give the same shape and type.

    `softmax_scale` is 1 / sqrt(head_dim) unless given. int8 pages need their scales [pages, kv_heads, page_size].
    """
    import torch

    check_arguments(plan, query, k_pages, v_pages, k_scale, v_scale, out)
    scale = plan.shape.head_dim**-0.5 if softmax_scale is None else softmax_scale
    if out is None:
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    if plan.kernel is None:
        answer = segment_prefill_reference(
            query, k_pages, v_pages, plan.segments, plan.views, plan.rope,
            softmax_scale=scale, k_scale=k_scale, v_scale=v_scale, compute=torch.float32,
        )  # fmt: skip
        return out.copy_(answer)
    _launch(plan, plan.kernel, query, k_pages, v_pages, k_scale, v_scale, out, scale)
    return out


def _tile_rows(segments: Tensor, shape: PageShape, group: int) -> int:
    """Give a tile's rows: the most that registers hold, or 64 where no segment fills more."""
    wide = 64 < shape.head_dim <= 128
    return 128 if wide and int(segments[:, 1].max()) * group > 64 else 64


def _launch_options(shape: PageShape, rows: int, element_size: int) -> dict[str, int]:
    """Give the settings that were best on an H200 (kernels/bench/prefill_attention.py), within its shared memory."""
    tokens, warps, stages = 128, 8, 2
    if element_size > 2:
        tokens, stages = 64, 1
    elif shape.head_dim > 128:
        tokens = 64
    elif shape.head_dim <= 64:
        warps = 4
    elif rows == 64:
        tokens, warps, stages = 64, 4, 3
    tokens = min(shape.page_size, tokens)
    return {"BLOCK_N": tokens, "SPAN": tokens, "num_warps": warps, "num_stages": stages}


def _kernel_tables(
    segments: Tensor, views: Tensor, rope: Rope, group: int, shape: PageShape, device: torch.device
) -> KernelTables:
    import torch

    programs = INTERPRETED_PROGRAMS
    if device.type == "cuda":
        programs = 2 * torch.cuda.get_device_properties(device).multi_processor_count
    rows = _tile_rows(segments, shape, group)
    cut = cut_tiles(segments, views, tile_queries=rows // group, kv_heads=shape.kv_heads, programs=programs)
    device_views = views.to(device)
    cosine, sine = cos_sin(replace(rope, attention_scale=1.0), device_views[:, 3])
    phase = torch.cat((cosine, sine), 1).to(torch.float32)
    on_device = TileTables(cut.tiles.to(device), cut.merges.to(device), cut.partial_count)
    return KernelTables(device_views, phase, on_device, rows)


def _launch(
    plan: SegmentPlan,
    tables: KernelTables,
    query: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    out: Tensor,
    scale: float,
) -> None:
    import torch

    from akashic_kernels.segment_prefill.triton import merge_kernel, segment_prefill_kernel

    cut, kv_heads, head_dim = tables.cut, plan.shape.kv_heads, plan.shape.head_dim
    rows = tables.tile_rows
    head_block = power_of_two(head_dim)
    heads = {
        "KV_HEADS": kv_heads,
        "GROUP": plan.query_heads // kv_heads,
        "HEAD_DIM": head_dim,
        "HEAD_BLOCK": head_block,
        "BLOCK_M": rows,
    }
    partial_rows = cut.partial_count * kv_heads * rows
    partial_out = torch.empty((partial_rows, head_block), dtype=torch.float32, device=query.device)
    partial_lse = torch.empty(partial_rows, dtype=torch.float32, device=query.device)
    with launching(KERNEL):
        segment_prefill_kernel[(len(cut.tiles), kv_heads)](
            query, k_pages, v_pages, k_scale, v_scale, out, partial_out, partial_lse,
            cut.tiles, tables.views, tables.view_phase, plan.rope.phase_step,
            plan.rope.attention_scale, scale * LOG2_E, query.stride(0), out.stride(0),
            # A dot needs 16 pairs; those past the head are masked.
            PAIR_BLOCK=max(16, head_block // 2), ROTARY=plan.rope.rotary_dim,
            INTERLEAVED=plan.rope.layout == "interleaved", PAGE=plan.shape.page_size, QUANTISED=k_scale is not None,
            JOINED=head_dim == head_block > 128 and plan.rope.rotary_dim == head_dim and plan.rope.layout == "half",
            **_launch_options(plan.shape, rows, query.element_size()), **heads,
        )  # fmt: skip
        if cut.partial_count:
            merge_kernel[(len(cut.merges), kv_heads, rows // MERGE_ROWS)](
                partial_out, partial_lse, out, cut.merges, out.stride(0), ROWS=MERGE_ROWS, num_warps=4, **heads
            )
