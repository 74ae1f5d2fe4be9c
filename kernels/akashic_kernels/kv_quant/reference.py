"""Eight-bit rows in torch: what scale and rounding mean, bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

LEVELS = 127.0


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Give `x` [..., head_dim] as int8 and the fp32 scale of each row, 0 for a row of zeros."""
    import torch

    x = x.to(torch.float32)
    largest = x.abs().amax(-1)
    # By a tensor: torch divides by a number on a GPU with its reciprocal, which rounds twice.
    scale = largest / torch.full_like(largest, LEVELS)
    divisor = torch.where(scale > 0, scale, torch.ones_like(scale))
    steps = torch.floor(x / divisor[..., None] + 0.5).clamp_(-LEVELS, LEVELS)
    return steps.to(torch.int8), scale


def dequantise_rows(stored: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Give int8 rows times their scales in `dtype`."""
    import torch

    return (stored.to(torch.float32) * scale[..., None]).to(dtype)
