"""Appending in torch: the definition, and what runs on CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from akashic_kernels.block_summary.reference import OUTWARDS
from akashic_kernels.kv_quant.reference import quantise_rows
from akashic_kernels.rope.reference import rotate

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from akashic_kernels.rope import Rope


def rope_append_reference(
    key: Tensor,
    value: Tensor,
    slots: Tensor,
    rope: Rope,
    k_pages: Tensor,
    v_pages: Tensor,
    *,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    bounds: Tensor | None,
    compute: torch.dtype,
) -> None:
    """Write tokens whose slot is not negative to `k_pages`, `v_pages`, their scales and the pages' bounds."""
    import torch

    written = slots >= 0
    place = slots[written].to(torch.int64)
    page, slot = place // k_pages.shape[2], place % k_pages.shape[2]
    keys = rotate(key[written], slot[:, None], rope, compute)
    if k_scale is not None and v_scale is not None:
        stored, scale = quantise_rows(keys)
        k_pages[page, :, slot], k_scale[page, :, slot] = stored, scale
        v_pages[page, :, slot], v_scale[page, :, slot] = quantise_rows(value[written])
        held = stored.to(torch.float32) * scale[..., None]
    else:
        held = keys.to(k_pages.dtype)
        k_pages[page, :, slot] = held
        v_pages[page, :, slot] = value[written].to(v_pages.dtype)
    if bounds is not None:
        widen(bounds, page, slot, outwards(held, bounds) if k_scale is not None else (held, held))


def outwards(keys: Tensor, bounds: Tensor) -> tuple[Tensor, Tensor]:
    """Give dequantised keys moved down and up by more than the rounding to the bounds' type, which float32 lacks."""
    import torch

    room = keys.abs() * (0.0 if bounds.dtype == torch.float32 else OUTWARDS)
    return keys - room, keys + room


def widen(bounds: Tensor, page: Tensor, slot: Tensor, keys: tuple[Tensor, Tensor]) -> None:
    """Let the bounds of each page hold `keys` too; a page whose slot 0 is written forgets what it held before."""
    import torch

    touched, row = torch.unique(page, return_inverse=True)
    held = bounds[touched]
    fresh = row[slot == 0]
    held[fresh, :, 0], held[fresh, :, 1] = torch.inf, -torch.inf
    index = row[:, None, None].expand_as(keys[0])
    low = held[:, :, 0].scatter_reduce(0, index, keys[0].to(bounds.dtype), "amin")
    high = held[:, :, 1].scatter_reduce(0, index, keys[1].to(bounds.dtype), "amax")
    bounds[touched] = torch.stack((low, high), 2)
