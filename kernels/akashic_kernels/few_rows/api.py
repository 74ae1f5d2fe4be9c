"""A linear layer of at most `MOST_ROWS` rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from akashic_kernels.backend import Backend, can_overlap, choose, launching, power_of_two
from akashic_kernels.few_rows.validation import KERNEL, MOST_ROWS, check_arguments

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["MOST_ROWS", "few_rows_linear"]

PRODUCTS = 4096
"""Products that a program holds apart: 32 registers a thread of four warps."""
MANY_FEATURES = 6144
"""From so many on, programs of eight features fill the GPU."""


def few_rows_linear(
    x: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    norm: Tensor | None = None,
    epsilon: float = 0.0,
    gated: bool = False,
    residual: Tensor | None = None,
    out: Tensor | None = None,
    backend: Backend | None = None,
) -> Tensor:
    """Give x [rows, in] through `weight` [out, in], all of one type: [rows, out], or [rows, out / 2] if `gated`.

    norm: RMS norm with these weights [in] and `epsilon` before. gated: silu of the first half times the second half
    after. residual: added at the end. `out` may be `residual`.
    """
    import torch

    features = check_arguments(x, weight, bias, norm, gated, residual, out)
    if out is None:
        out = torch.empty((x.shape[0], features), dtype=x.dtype, device=x.device)
    if choose(KERNEL, x, backend) == "reference":
        from akashic_kernels.few_rows.reference import few_rows_reference

        found = few_rows_reference(x, weight, bias, norm, epsilon, gated, residual, compute=torch.float32)
        return out.copy_(found)
    if x.shape[0]:
        _launch(x, weight, bias, norm, epsilon, gated, residual, out)
    return out


def _launch(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm: Tensor | None,
    epsilon: float,
    gated: bool,
    residual: Tensor | None,
    out: Tensor,
    shape: tuple[int, int, int] | None = None,
) -> None:
    from akashic_kernels.few_rows.triton import few_rows_kernel

    rows, wide = x.shape
    block = power_of_two(rows)
    features, inputs, warps = shape or launch_shape(block, out.shape[1], wide, gated)
    overlap = x.is_cuda and can_overlap(x.device)
    with launching(KERNEL):
        few_rows_kernel[(-(-out.shape[1] // features),)](
            x, weight, bias, norm, residual, out, rows, out.shape[1], wide, x.stride(0),
            0 if residual is None else residual.stride(0), out.stride(0), epsilon,
            ROWS=block, FEATURES=features, INPUTS=inputs, BIASED=bias is not None, NORMED=norm is not None, GATED=gated,
            ADDED=residual is not None, OVERLAP=overlap, num_warps=warps,
            **({"launch_pdl": True} if overlap else {}),
        )  # fmt: skip


def launch_shape(rows: int, features: int, wide: int, gated: bool) -> tuple[int, int, int]:
    """Choose output features and input features of a program's step, and warps: as kernels/bench/few_rows.py found."""
    own = 8 if features >= MANY_FEATURES and rows <= 2 and not gated else 4
    inputs = PRODUCTS // (own * rows * (2 if gated else 1))
    return own, max(64, min(inputs, power_of_two(wide))), 4
