"""The choice of views in torch alone; defines what the kernel computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from akashic_kernels.rope.reference import rotate

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from akashic_kernels.rope import Rope


def score_row(
    query: Tensor, bounds: Tensor, views: Tensor, position: Tensor, rope: Rope, *, compute: torch.dtype
) -> Tensor:
    """Give the scores [kv_heads, n] of one row's views [n, 4] for its query [q_heads, head_dim]."""
    import torch

    kv_heads = bounds.shape[1]
    of_views = bounds[views[:, 0].long()].to(compute)
    delta = position.long() - views[:, 3].long()
    turned = rotate(query.view(1, kv_heads, -1, query.shape[-1]), delta[:, None, None], rope, compute)
    low, high = of_views[:, :, None, 0], of_views[:, :, None, 1]
    return torch.maximum(turned * low, turned * high).sum(-1).amax(-1).T


def choose_row(scores: Tensor, views: Tensor, top_k: int, sink: int, recent: int) -> list[Tensor]:
    """Give for each KV head the indices of the chosen views, rising, from scores [kv_heads, n]."""
    import torch

    count = views.shape[0]
    index = torch.arange(count, device=views.device)
    has_tokens = views[:, 2] > 0
    forced = has_tokens & ((index < sink) | (index >= count - recent))
    others = index[has_tokens & ~forced]
    chosen = []
    for of_head in scores:
        values = torch.nan_to_num(of_head[others], nan=torch.inf)
        order = torch.sort(values, descending=True, stable=True).indices[:top_k]
        chosen.append(torch.cat((index[forced], others[order])).sort().values)
    return chosen
