"""The rotary parameters that each op takes, checked once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from akashic_kernels.errors import KernelInputError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Layout = Literal["half", "interleaved"]


@dataclass(frozen=True, slots=True, eq=False)
class Rope:
    """Rotary parameters of a model on one device; make it with `make_rope`.

    `inv_freq` float32 [rotary_dim / 2], `phase_step` int64 of the same shape (turns per position, times 2^64).
    """

    inv_freq: Tensor
    phase_step: Tensor
    attention_scale: float
    layout: Layout

    @property
    def rotary_dim(self) -> int:
        """Dimensions of a head that are turned, from its first on."""
        return 2 * self.inv_freq.shape[0]


def make_rope(
    inv_freq: Tensor,
    *,
    attention_scale: float = 1.0,
    layout: Layout = "half",
    device: torch.device | str | None = None,
) -> Rope:
    """Check rotary parameters and put them on `device` (default: where `inv_freq` is)."""
    import torch

    if inv_freq.dim() != 1 or inv_freq.shape[0] == 0 or inv_freq.dtype != torch.float32:
        raise KernelInputError(
            "rope", f"inv_freq must be float32 of one dimension, not {inv_freq.dtype} {tuple(inv_freq.shape)}"
        )
    if layout not in get_args(Layout):
        raise KernelInputError("rope", f"unknown layout {layout!r}; known are 'half' and 'interleaved'")
    if not (math.isfinite(attention_scale) and attention_scale > 0):
        raise KernelInputError("rope", f"attention_scale must be positive and finite, not {attention_scale}")
    exact = inv_freq.detach().cpu().double()
    if not bool(torch.isfinite(exact).all()) or bool((exact.abs() >= math.pi).any()):
        raise KernelInputError("rope", "inv_freq must be finite and turn less than half a circle a position")
    # Scaling by 2^64 is exact in float64, and the result is below 2^63.
    steps = torch.round(exact / (2 * math.pi) * 2.0**64).to(torch.int64)
    place = inv_freq.device if device is None else device
    return Rope(inv_freq.detach().to(place), steps.to(place), float(attention_scale), layout)
