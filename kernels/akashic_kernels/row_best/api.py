"""The greatest number of each row, in one launch that can write to pinned host memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from akashic_kernels.backend import Backend, choose, launching, power_of_two
from akashic_kernels.row_best.validation import KERNEL, check_arguments

if TYPE_CHECKING:
    import torch
    from torch import Tensor

BLOCK = 2048
_LEAST = -(1 << 63)


@dataclass(frozen=True, slots=True, eq=False)
class RowBest:
    """Each row's greatest value (float32) and its place (int32), and room that one launch at a time may use."""

    greatest: Tensor
    place: Tensor
    key: Tensor
    arrived: Tensor


def make_row_best(rows: int, device: torch.device | str, *, on_host: bool = False) -> RowBest:
    """Allocate results of `rows` rows; `on_host` in pinned memory, where they stand once the stream is past the launch."""
    import torch

    where = torch.device("cpu") if on_host else torch.device(device)
    pinned = on_host and torch.device(device).type == "cuda"
    return RowBest(
        torch.zeros(rows, dtype=torch.float32, device=where, pin_memory=pinned),
        torch.zeros(rows, dtype=torch.int32, device=where, pin_memory=pinned),
        torch.full((rows,), _LEAST, dtype=torch.int64, device=device),
        torch.zeros(rows, dtype=torch.int32, device=device),
    )


def row_best(values: Tensor, out: RowBest, *, backend: Backend | None = None) -> None:
    """Find the greatest number of each row of `values` [rows, n] and its first place; NaN is greater than any number."""
    check_arguments(values, out.greatest, out.place, out.key, out.arrived)
    rows, wide = values.shape
    if choose(KERNEL, values, backend) == "reference":
        from akashic_kernels.row_best.reference import best

        greatest, place = best(values)
        out.greatest[:rows].copy_(greatest)
        out.place[:rows].copy_(place)
        return
    if rows == 0:
        return
    from akashic_kernels.row_best.triton import row_best_kernel

    block = min(BLOCK, power_of_two(wide))
    with launching(KERNEL):
        row_best_kernel[(-(-wide // block), rows)](
            values, out.greatest, out.place, out.key, out.arrived, wide, values.stride(0), BLOCK=block, num_warps=4
        )
