"""What a linear layer of few rows refuses: each error names the argument."""

from __future__ import annotations

from typing import TYPE_CHECKING

from akashic_kernels.errors import KernelInputError
from akashic_kernels.views import check_tensor

if TYPE_CHECKING:
    from torch import Tensor

KERNEL = "few_rows"
MOST_ROWS = 4


def check_arguments(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm: Tensor | None,
    gated: bool,
    residual: Tensor | None,
    out: Tensor | None,
) -> int:
    """Check types, shapes and places; give the number of output features."""
    import torch

    floats = (torch.bfloat16, torch.float16, torch.float32)
    check_tensor(KERNEL, "x", x, dtype=floats, shape=(None, None), contiguous=False)
    rows, wide = x.shape
    if rows > MOST_ROWS or (wide > 1 and x.stride(1) != 1):
        raise KernelInputError(
            KERNEL, f"x must have at most {MOST_ROWS} dense rows, not {rows} of strides {x.stride()}"
        )
    check_tensor(KERNEL, "weight", weight, dtype=x.dtype, shape=(None, wide), device=x.device)
    features = int(weight.shape[0])
    if gated and features % 2:
        raise KernelInputError(KERNEL, f"a gated layer needs an even number of features, not {features}")
    if bias is not None:
        check_tensor(KERNEL, "bias", bias, dtype=x.dtype, shape=(features,), device=x.device)
    if norm is not None:
        check_tensor(KERNEL, "norm", norm, dtype=x.dtype, shape=(wide,), device=x.device)
    features = features // 2 if gated else features
    for name, tensor in (("residual", residual), ("out", out)):
        if tensor is not None:
            check_tensor(KERNEL, name, tensor, dtype=x.dtype, shape=(rows, features), device=x.device, contiguous=False)
            if features > 1 and tensor.stride(1) != 1:
                raise KernelInputError(KERNEL, f"{name} must have dense rows; its strides are {tensor.stride()}")
    return features
