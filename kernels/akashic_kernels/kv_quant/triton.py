"""Eight-bit rows in Triton: the scale, the rounding, and the kernels that turn whole pools."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def row_scale(largest):
    """Give the fp32 scale of a row whose largest magnitude is `largest`; 0 for a row of zeros."""
    return tl.math.div_rn(largest.to(tl.float32), tl.full(largest.shape, 127.0, tl.float32))


@triton.jit
def to_int8(x, scale):
    """Round fp32 `x` / `scale` to the nearest of -127..127, halves upwards; 0 where the scale is."""
    divisor = tl.where(scale > 0.0, scale, 1.0) + tl.zeros_like(x)
    steps = tl.floor(tl.math.div_rn(x, divisor) + 0.5)
    return tl.minimum(tl.maximum(steps, -127.0), 127.0).to(tl.int8)


@triton.jit
def quantise_kernel(
    source, target, scales, row_count, HEAD_DIM: tl.constexpr, HEAD_BLOCK: tl.constexpr, ROWS: tl.constexpr
):
    """Write rows of `source` as int8 with one scale a row."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    dim = tl.arange(0, HEAD_BLOCK)
    mask = (row < row_count)[:, None] & (dim < HEAD_DIM)[None, :]
    offset = row[:, None] * HEAD_DIM + dim[None, :]
    x = tl.load(source + offset, mask=mask, other=0.0).to(tl.float32)
    scale = row_scale(tl.max(tl.abs(x), 1))
    tl.store(scales + row, scale, mask=row < row_count)
    tl.store(target + offset, to_int8(x, scale[:, None]), mask=mask)


@triton.jit
def dequantise_kernel(
    source, scales, target, row_count, HEAD_DIM: tl.constexpr, HEAD_BLOCK: tl.constexpr, ROWS: tl.constexpr
):
    """Write int8 rows times their scales as the target's type."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    dim = tl.arange(0, HEAD_BLOCK)
    mask = (row < row_count)[:, None] & (dim < HEAD_DIM)[None, :]
    offset = row[:, None] * HEAD_DIM + dim[None, :]
    x = tl.load(source + offset, mask=mask, other=0).to(tl.float32)
    scale = tl.load(scales + row, mask=row < row_count, other=0.0)
    tl.store(target + offset, (x * scale[:, None]).to(target.dtype.element_ty), mask=mask)
