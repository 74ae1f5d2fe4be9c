"""The Triton kernel of a linear layer of few rows: a program for some output features, all rows and all inputs."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def few_rows_kernel(
    x,
    weight,
    bias,
    norm,
    residual,
    out,
    rows,
    features,
    wide,
    x_stride,
    residual_stride,
    out_stride,
    epsilon,
    ROWS: tl.constexpr,
    FEATURES: tl.constexpr,
    INPUTS: tl.constexpr,
    BIASED: tl.constexpr,
    NORMED: tl.constexpr,
    GATED: tl.constexpr,
    ADDED: tl.constexpr,
):
    """Products [FEATURES, INPUTS] of each row are added up step by step, and over INPUTS at the end."""
    feature = tl.program_id(0) * FEATURES + tl.arange(0, FEATURES)
    row = tl.arange(0, ROWS)
    in_step = tl.arange(0, INPUTS)
    real = feature < features
    live = row < rows
    first_at = weight + feature.to(tl.int64)[:, None] * wide
    second_at = first_at + (tl.zeros([1], tl.int64) + features) * wide
    products = tl.zeros([ROWS, FEATURES, INPUTS], tl.float32)
    gated_products = tl.zeros([ROWS, FEATURES, INPUTS], tl.float32)
    squares = tl.zeros([ROWS, INPUTS], tl.float32)
    for start in range(0, wide, INPUTS):
        k = start + in_step
        inside = k < wide
        w = tl.load(
            first_at + k[None, :], mask=real[:, None] & inside[None, :], other=0.0, eviction_policy="evict_first"
        )
        if GATED:
            u = tl.load(
                second_at + k[None, :], mask=real[:, None] & inside[None, :], other=0.0, eviction_policy="evict_first"
            )
        v = tl.load(x + row[:, None] * x_stride + k[None, :], mask=live[:, None] & inside[None, :], other=0.0)
        v = v.to(tl.float32)
        if NORMED:
            squares += v * v
            v *= tl.load(norm + k, mask=inside, other=0.0).to(tl.float32)[None, :]
        products += v[:, None, :] * w.to(tl.float32)[None, :, :]
        if GATED:
            gated_products += v[:, None, :] * u.to(tl.float32)[None, :, :]
    y = tl.sum(products, 2)
    z = tl.sum(gated_products, 2)
    if NORMED:
        scale = 1.0 / tl.sqrt(tl.sum(squares, 1) / wide + epsilon)
        y *= scale[:, None]
        z *= scale[:, None]
    if BIASED:
        y += tl.load(bias + feature, mask=real, other=0.0).to(tl.float32)[None, :]
        if GATED:
            z += tl.load(bias + features + feature, mask=real, other=0.0).to(tl.float32)[None, :]
    if GATED:
        y = y / (1.0 + tl.exp(-y)) * z
    stored = live[:, None] & real[None, :]
    if ADDED:
        y += tl.load(residual + row[:, None] * residual_stride + feature[None, :], mask=stored, other=0.0).to(
            tl.float32
        )
    tl.store(out + row[:, None] * out_stride + feature[None, :], y.to(out.dtype.element_ty), mask=stored)
