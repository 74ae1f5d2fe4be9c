"""What rotation means, in torch alone; every op's reference turns keys and queries with this."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from akashic_kernels.rope.api import Rope


def cos_sin(rope: Rope, position: Tensor) -> tuple[Tensor, Tensor]:
    """Give float64 cosine and sine [*position, rotary_dim / 2] of integer positions, times the attention scale."""
    import torch

    angle = position.to(torch.float64)[..., None] * rope.inv_freq.to(torch.float64)
    return angle.cos() * rope.attention_scale, angle.sin() * rope.attention_scale


def rotate(x: Tensor, position: Tensor, rope: Rope, dtype: torch.dtype) -> Tensor:
    """Turn `x` [..., head_dim] by `position`, an integer tensor that broadcasts to x's leading shape, in `dtype`."""
    import torch

    cos, sin = (part.to(dtype) for part in cos_sin(rope, position))
    x = x.to(dtype)
    turned, rest = x[..., : rope.rotary_dim], x[..., rope.rotary_dim :]
    if rope.layout == "half":
        first, second = turned.chunk(2, dim=-1)
    else:
        first, second = turned[..., 0::2], turned[..., 1::2]
    new = (first * cos - second * sin, first * sin + second * cos)
    joined = torch.cat(new, -1) if rope.layout == "half" else torch.stack(new, -1).flatten(-2)
    if rest.shape[-1] == 0:
        return joined
    return torch.cat((joined, rest.expand(*joined.shape[:-1], rest.shape[-1])), -1)
