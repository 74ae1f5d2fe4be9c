"""Pages to int8 with scales, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from akashic_kernels.backend import Backend, choose, launching, power_of_two
from akashic_kernels.kv_quant.reference import dequantise_rows, quantise_rows
from akashic_kernels.kv_quant.validation import KERNEL, check_dequantise, check_quantise

if TYPE_CHECKING:
    import torch
    from torch import Tensor

ROWS = 32
"""Rows a program: one page of 128 tokens and one head is four programs."""


def quantise_pages(
    pages: Tensor, *, out: Tensor | None = None, scale: Tensor | None = None, backend: Backend | None = None
) -> tuple[Tensor, Tensor]:
    """Give pages [pages, kv_heads, page_size, head_dim] as int8, and their scales, fp32 [pages, kv_heads, page_size].

    `out` and `scale` take the results if given.
    """
    import torch

    out = torch.empty(pages.shape, dtype=torch.int8, device=pages.device) if out is None else out
    scale = torch.empty(pages.shape[:-1], dtype=torch.float32, device=pages.device) if scale is None else scale
    check_quantise(pages, out, scale)
    if choose(KERNEL, pages, backend) == "reference":
        stored, scales = quantise_rows(pages)
        return out.copy_(stored), scale.copy_(scales)
    from akashic_kernels.kv_quant.triton import quantise_kernel

    count, width = scale.numel(), pages.shape[-1]
    if count:
        with launching(KERNEL):
            quantise_kernel[(-(-count // ROWS),)](
                pages, out, scale, count, HEAD_DIM=width, HEAD_BLOCK=power_of_two(width), ROWS=ROWS, num_warps=4
            )
    return out, scale


def dequantise_pages(
    pages: Tensor,
    scale: Tensor,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    backend: Backend | None = None,
) -> Tensor:
    """Give int8 pages times their scales as `dtype` (bfloat16 unless given), into `out` if given."""
    import torch

    if out is None:
        out = torch.empty(pages.shape, dtype=dtype or torch.bfloat16, device=pages.device)
    check_dequantise(pages, scale, out)
    if choose(KERNEL, pages, backend) == "reference":
        return out.copy_(dequantise_rows(pages, scale, out.dtype))
    from akashic_kernels.kv_quant.triton import dequantise_kernel

    count, width = scale.numel(), pages.shape[-1]
    if count:
        with launching(KERNEL):
            dequantise_kernel[(-(-count // ROWS),)](
                pages, scale, out, count, HEAD_DIM=width, HEAD_BLOCK=power_of_two(width), ROWS=ROWS, num_warps=4
            )
    return out
