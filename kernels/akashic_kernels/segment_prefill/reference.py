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

QUERY_BLOCK = 512
MASK_ELEMENTS = 1 << 22
"""Limits of a block of queries, whose mask is dense: 16 MiB in float32."""


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

    page = views[:, 0].to(torch.int64)
    keys, values = k_pages[page].to(dtype), v_pages[page].to(dtype)
    if k_scale is not None and v_scale is not None:
        keys, values = keys * k_scale[page][..., None].to(dtype), values * v_scale[page][..., None].to(dtype)
    # Stored keys are turned by their slot and carry the attention scale: what is missing is the view's base.
    keys = rotate(keys, views[:, 3][:, None, None], replace(rope, attention_scale=1.0), dtype)
    slot = torch.arange(k_pages.shape[2], device=views.device)
    offset, end = views[:, 1:2], views[:, 1:2] + views[:, 2:3]
    seen = ((slot >= offset) & (slot < end)).flatten().nonzero().squeeze(1)
    return _tokens(keys, seen), _tokens(values, seen)


def _tokens(pages: Tensor, seen: Tensor) -> Tensor:
    """Give tokens `seen` (indices into all slots) of [views, kv_heads, page_size, head_dim], heads first."""
    flat = pages.transpose(0, 1).reshape(pages.shape[1], -1, pages.shape[3])
    return flat if len(seen) == flat.shape[1] else flat.index_select(1, seen)


def attend_to_last(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """Attend from [queries, q_heads, head_dim] to keys whose last `queries` are the queries' own tokens, causally."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    count, visible = query.shape[0], keys.shape[1]
    out = torch.empty_like(query)
    block = max(1, min(QUERY_BLOCK, MASK_ELEMENTS // visible))
    for start in range(0, count, block):
        stop = min(start + block, count)
        seen = visible - count + stop
        mask = torch.zeros(stop - start, seen, dtype=query.dtype, device=query.device)
        hidden = torch.ones(stop - start, stop - start, dtype=torch.bool, device=query.device).triu_(1)
        mask[:, seen - (stop - start) :].masked_fill_(hidden, -torch.inf)
        rows = query[start:stop].transpose(0, 1)[None]
        answer = scaled_dot_product_attention(
            rows, keys[None, :, :seen], values[None, :, :seen], attn_mask=mask, scale=scale, enable_gqa=True
        )
        out[start:stop] = answer[0].transpose(0, 1)
    return out
