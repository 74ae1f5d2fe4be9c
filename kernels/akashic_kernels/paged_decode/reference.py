"""Decode attention in torch alone; defines what the kernel computes, and serves CPU tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from akashic_kernels.rope.reference import rotate

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from akashic_kernels.rope import Rope


def attend(
    query: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    head_views: list[list[Tensor]],
    query_position: Tensor,
    rope: Rope,
    softmax_scale: float,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    *,
    compute: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Attend in the type `compute`; `head_views[row][kv_head]` are views [n, 4], or one entry that all heads share.

    Gives out [batch, q_heads, head_dim] and the natural logarithm of the sums [batch, q_heads], both of `compute`;
    zero and minus infinity where a row sees nothing.
    """
    import torch

    batch, q_heads, head_dim = query.shape
    kv_heads = k_pages.shape[1]
    out = torch.zeros(batch, kv_heads, q_heads // kv_heads, head_dim, dtype=compute, device=query.device)
    lse = torch.full(out.shape[:3], -torch.inf, dtype=compute, device=query.device)
    grouped = query.view(batch, kv_heads, -1, head_dim)
    for row in range(batch):
        shared = len(head_views[row]) == 1
        for index, views in enumerate(head_views[row]):
            heads = slice(None) if shared else slice(index, index + 1)
            keys, values = (
                _pages_of(pages, scale, views[:, 0], heads, compute)
                for pages, scale in ((k_pages, k_scale), (v_pages, v_scale))
            )
            out[row, heads], lse[row, heads] = _one_row(
                grouped[row, heads], keys, values, views, query_position[row], rope, softmax_scale
            )
    return out.view(batch, q_heads, head_dim), lse.view(batch, q_heads)


def _pages_of(pages: Tensor, scale: Tensor | None, page: Tensor, heads: slice, compute: torch.dtype) -> Tensor:
    page = page.long()
    taken = pages[page, heads].to(compute)
    return taken if scale is None else taken * scale[page, heads].to(compute)[..., None]


def _one_row(
    query: Tensor, keys: Tensor, values: Tensor, views: Tensor, position: Tensor, rope: Rope, softmax_scale: float
) -> tuple[Tensor, Tensor]:
    """Attend with query [heads, group, d] to keys and values [views, heads, slots, d]."""
    import torch

    slot = torch.arange(keys.shape[2], device=keys.device)
    _, offset, length, base = (column[:, None] for column in views.long().unbind(1))
    visible = (slot >= offset) & (slot < offset + length)
    turned = rotate(query[None], (position.long() - base)[..., None], rope, keys.dtype)
    scores = torch.einsum("vhgd,vhsd->hgvs", turned, keys) * softmax_scale
    scores = scores.masked_fill(~visible, -torch.inf).flatten(2)
    values = values.masked_fill(~visible[:, None, :, None], 0).transpose(0, 1).flatten(1, 2)
    lse = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - torch.where(lse == -torch.inf, 0, lse)[..., None])
    return weights @ values, lse
