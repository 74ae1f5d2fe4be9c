"""What the update of bounds accepts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from akashic_kernels.errors import KernelInputError
from akashic_kernels.views import PageShape, check_tensor

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def bounds_type(pages: torch.dtype, bounds: torch.dtype) -> bool:
    """Say whether bounds of type `bounds` can hold values of pages of type `pages` without loss or outwards."""
    import torch

    if pages == torch.int8:
        return bounds in {torch.bfloat16, torch.float32}
    return bounds == pages


def check_bounds(kernel: str, bounds: Tensor, pages: Tensor, shape: PageShape) -> None:
    """Check the bounds of a pool of pages."""
    wanted = (shape.pages, shape.kv_heads, 2, shape.head_dim)
    check_tensor(kernel, "bounds", bounds, dtype=bounds.dtype, shape=wanted, device=pages.device)
    if not bounds_type(pages.dtype, bounds.dtype):
        raise KernelInputError(kernel, f"bounds of {bounds.dtype} can't hold those of pages of {pages.dtype}")
