"""What `row_best` refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from akashic_kernels.errors import KernelInputError
from akashic_kernels.views import check_tensor

if TYPE_CHECKING:
    from torch import Tensor

KERNEL = "row_best"


def check_arguments(values: Tensor, greatest: Tensor, place: Tensor, key: Tensor, arrived: Tensor) -> None:
    """Check the rows and the room for their results, which may be pinned host memory."""
    import torch

    floats = (torch.bfloat16, torch.float16, torch.float32)
    check_tensor(KERNEL, "values", values, dtype=floats, shape=(None, None), contiguous=False)
    rows, wide = values.shape
    if wide < 1 or wide >= 1 << 31 or values.stride(1) != 1:
        raise KernelInputError(
            KERNEL, f"values must have dense rows of 1 or more, not {list(values.shape)} of strides {values.stride()}"
        )
    outs = {"greatest": (greatest, torch.float32), "place": (place, torch.int32)}
    for name, (out, dtype) in outs.items():
        check_tensor(KERNEL, name, out, dtype=dtype, shape=(None,))
        if out.device != values.device and not (values.is_cuda and out.device.type == "cpu" and out.is_pinned()):
            raise KernelInputError(
                KERNEL, f"{name} must be on {values.device} or in pinned memory, not on {out.device}"
            )
    for name, room, dtype in (("key", key, torch.int64), ("arrived", arrived, torch.int32)):
        check_tensor(KERNEL, name, room, dtype=dtype, shape=(None,), device=values.device)
    least = min(part.shape[0] for part in (greatest, place, key, arrived))
    if least < rows:
        raise KernelInputError(KERNEL, f"room was made for {least} rows, not for {rows}")
