"""The layer in torch alone: the definition of what the kernel computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def few_rows_reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm: Tensor | None,
    epsilon: float,
    gated: bool,
    residual: Tensor | None,
    *,
    compute: torch.dtype,
) -> Tensor:
    """Compute everything in the type `compute`, and give the result in it."""
    import torch

    wide = x.to(compute)
    if norm is not None:
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon) * norm.to(compute)
    y = wide @ weight.to(compute).T
    if bias is not None:
        y = y + bias.to(compute)
    if gated:
        gate, up = y.chunk(2, dim=-1)
        y = torch.nn.functional.silu(gate) * up
    return y if residual is None else y + residual.to(compute)
