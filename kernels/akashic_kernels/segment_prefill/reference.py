"""Segment prefill in torch: the definition of what the kernel computes, quick enough to serve small models on CPU.

Each query attends to the visible tokens of its segment in the order of its views, as far as its own. Angles are taken in
float64; the rest is done in `compute`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from akashic_kernels.rope.reference import rotate

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from akashic_kernels.rope import Rope

SCORE_ELEMENTS = 1 << 23
"""Scores held at a time: 32 MiB in float32, so that a long context costs time and not memory."""


def segment_prefill_reference(
    query: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    segments: Tensor,
    views: Tensor,
    rope: Rope,
    *,
    softmax_scale: float,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    compute: torch.dtype,
) -> Tensor:
    """Give attention [tokens, q_heads, head_dim] in `compute` of each segment's queries to its own views."""
    import torch

    out = torch.empty(query.shape, dtype=compute, device=query.device)
    for query_start, query_count, view_start, view_count, position_start in segments.tolist():
        own = views[view_start : view_start + view_count].to(query.device)
        keys, values = visible_keys_values(k_pages, v_pages, own, rope, k_scale, v_scale, compute)
        stop = query_start + query_count
        position = torch.arange(position_start, position_start + query_count, device=query.device)
        turned = rotate(query[query_start:stop], position[:, None], rope, compute)
        out[query_start:stop] = attend_to_last(turned, keys, values, softmax_scale)
    return out


def visible_keys_values(
    k_pages: Tensor,
    v_pages: Tensor,
    views: Tensor,
    rope: Rope,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Gather the views' tokens in order, keys at their positions: two of [kv_heads, visible, head_dim]."""
    import torch

    length = views[:, 2].to(torch.int64)
    row = torch.repeat_interleave(torch.arange(len(views), device=views.device), length)
    before = torch.cumsum(length, 0) - length
    page = views[:, 0].to(torch.int64)[row]
    slot = torch.arange(len(row), device=views.device) - before[row] + views[:, 1].to(torch.int64)[row]
    keys, values = k_pages[page, :, slot].to(dtype), v_pages[page, :, slot].to(dtype)
    if k_scale is not None and v_scale is not None:
        keys = keys * k_scale[page, :, slot].to(dtype)[..., None]
        values = values * v_scale[page, :, slot].to(dtype)[..., None]
    # Stored keys are turned by their slot and carry the attention scale: what is missing is the view's base.
    keys = rotate(keys, views[:, 3][row][:, None], replace(rope, attention_scale=1.0), dtype)
    return keys.transpose(0, 1), values.transpose(0, 1)


def attend_to_last(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """Attend from [queries, q_heads, head_dim] to keys whose last `queries` are the queries' own tokens, causally."""
    import torch

    count, heads, width = query.shape
    kv_heads, visible, _ = keys.shape
    group = heads // kv_heads
    grouped = query.reshape(count, kv_heads, group, width).permute(1, 2, 0, 3)
    out = torch.empty(kv_heads, group, count, width, dtype=query.dtype, device=query.device)
    chunk = max(1, SCORE_ELEMENTS // (heads * visible))
    for start in range(0, count, chunk):
        stop = min(start + chunk, count)
        seen = visible - count + stop
        rows = grouped[:, :, start:stop].reshape(kv_heads, group * (stop - start), width)
        scores = (rows @ keys[:, :seen].transpose(1, 2)).mul_(scale).view(kv_heads, group, stop - start, seen)
        hidden = torch.ones(stop - start, stop - start, dtype=torch.bool, device=query.device).triu_(1)
        scores[..., seen - (stop - start) :].masked_fill_(hidden, -torch.inf)
        weights = torch.softmax(scores, -1).view(kv_heads, group * (stop - start), seen)
        out[:, :, start:stop] = (weights @ values[:, :seen]).view(kv_heads, group, stop - start, width)
    return out.permute(2, 0, 1, 3).reshape(count, heads, width)
