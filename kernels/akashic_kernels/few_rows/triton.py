"""The Triton kernel of a linear layer of few rows: a program for some output features, all rows and all inputs."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


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
    OVERLAP: tl.constexpr,
):
    """Products [FEATURES, INPUTS] of each row are added up step by step, and over INPUTS at the end.

    With OVERLAP a launch begins before the one before it has ended, and waits for it before it reads anything.
    """
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
    if OVERLAP:
        gdc_launch_dependents()
        gdc_wait()
    for start in range(0, wide, INPUTS):
        k = start + in_step
        inside = k < wide
        w = load_weights(first_at, k, wide, real)
        u = load_weights(second_at, k, wide, real & GATED)
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


@triton.jit
def load_weights(at, k, wide, real):
    """Load the inputs `k` of the features `at`; zeros where they end."""
    mask = real[:, None] & (k < wide)[None, :]
    return tl.load(at + k[None, :], mask=mask, other=0.0, eviction_policy="evict_first")
