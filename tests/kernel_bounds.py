"""The error that a kernel may have, derived and not chosen: from a float64 truth and an independent reference.

A kernel's error is held against twice that of an independent computation in the same type plus one rounding of the
result. Two measures: the greatest error of an element, and the norm of all.
"""

from __future__ import annotations

import torch
from torch import Tensor


def poisoned(*shape: int, dtype: torch.dtype, device: str) -> Tensor:
    """Give an output that shows each element that a kernel did not write: NaN, or the least integer."""
    if dtype.is_floating_point:
        return torch.full(shape, float("nan"), dtype=dtype, device=device)
    return torch.full(shape, torch.iinfo(dtype).min, dtype=dtype, device=device)


def half_unit(dtype: torch.dtype) -> float:
    """Give the greatest relative error of one rounding to `dtype`."""
    return torch.finfo(dtype).eps / 2


def assert_within_bound(
    got: Tensor, same_type: Tensor, truth: Tensor, *, rounded_to: torch.dtype | None = None
) -> None:
    """Hold `got` to 2 x the error of `same_type` + one rounding, both against `truth` (float64).

    `rounded_to` names the type of the last rounding where it is not got's own (float32 made from bf16 parts, say).
    """
    assert truth.dtype == torch.float64, "the truth must be float64"
    assert got.shape == same_type.shape == truth.shape, (got.shape, same_type.shape, truth.shape)
    truth = truth.cpu()
    error = (got.cpu().double() - truth).abs()
    allowed = (same_type.cpu().double() - truth).abs()
    unit = half_unit(rounded_to or got.dtype)
    if truth.numel() == 0:
        return
    assert bool(torch.isfinite(error).all()), f"{int((~torch.isfinite(error)).sum())} elements are not finite"
    most, most_allowed = float(error.max()), float(2 * allowed.max() + unit * truth.abs().max())
    assert most <= most_allowed, f"greatest error {most:.3g}, allowed {most_allowed:.3g}"
    norm, norm_allowed = float(error.norm()), float(2 * allowed.norm() + unit * truth.norm())
    assert norm <= norm_allowed, f"norm of the error {norm:.3g}, allowed {norm_allowed:.3g}"
