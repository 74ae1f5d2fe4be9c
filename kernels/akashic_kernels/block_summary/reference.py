"""Bounds in torch alone; defines what the kernel computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

# bf16 rounds by at most 2^-9 relative; a step of 2^-7 outwards covers it.
OUTWARDS = 2.0**-7


def update(bounds: Tensor, k_pages: Tensor, runs: Tensor, k_scale: Tensor | None) -> None:
    """Widen `bounds` by the keys of `runs` [n, 3] (page, offset, length), in place."""
    import torch

    for page, offset, length in runs.tolist():
        if length == 0:
            continue
        slots = slice(offset, offset + length)
        keys = k_pages[page, :, slots].float()
        if k_scale is not None:
            keys = keys * k_scale[page, :, slots, None]
        new = torch.stack((keys.amin(1), keys.amax(1)), 1)
        if k_scale is not None and bounds.dtype != torch.float32:
            room = new.abs() * OUTWARDS
            new = torch.stack((new[:, 0] - room[:, 0], new[:, 1] + room[:, 1]), 1)
        new = new.to(bounds.dtype)
        if offset > 0:
            old = bounds[page]
            new = torch.stack((torch.minimum(old[:, 0], new[:, 0]), torch.maximum(old[:, 1], new[:, 1])), 1)
        bounds[page] = new
