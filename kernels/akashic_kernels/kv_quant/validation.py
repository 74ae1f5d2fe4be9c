"""What the quantiser refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from akashic_kernels.views import check_tensor

if TYPE_CHECKING:
    from torch import Tensor

KERNEL = "kv_quant"


def check_quantise(pages: Tensor, out: Tensor, scale: Tensor) -> None:
    """Check pages of floats and the places of the result."""
    import torch

    floats = (torch.bfloat16, torch.float16, torch.float32)
    check_tensor(KERNEL, "pages", pages, dtype=floats, shape=(None,) * 4)
    check_tensor(KERNEL, "out", out, dtype=torch.int8, shape=tuple(pages.shape), device=pages.device)
    check_tensor(KERNEL, "scale", scale, dtype=torch.float32, shape=tuple(pages.shape[:3]), device=pages.device)


def check_dequantise(pages: Tensor, scale: Tensor, out: Tensor) -> None:
    """Check int8 pages, their scales and the place of the result."""
    import torch

    floats = (torch.bfloat16, torch.float16, torch.float32)
    check_tensor(KERNEL, "pages", pages, dtype=torch.int8, shape=(None,) * 4)
    check_tensor(KERNEL, "scale", scale, dtype=torch.float32, shape=tuple(pages.shape[:3]), device=pages.device)
    check_tensor(KERNEL, "out", out, dtype=floats, shape=tuple(pages.shape), device=pages.device)
