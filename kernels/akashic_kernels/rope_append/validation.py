"""What appending refuses: each error names the argument."""

from __future__ import annotations

from typing import TYPE_CHECKING

from akashic_kernels.block_summary.validation import check_bounds
from akashic_kernels.errors import KernelInputError
from akashic_kernels.views import PageShape, check_pages, check_tensor

if TYPE_CHECKING:
    from torch import Tensor

    from akashic_kernels.rope import Rope

KERNEL = "rope_append"


def check_arguments(
    key: Tensor,
    value: Tensor,
    slots: Tensor,
    rope: Rope,
    k_pages: Tensor,
    v_pages: Tensor,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    bounds: Tensor | None,
) -> PageShape:
    """Check shapes, types and places, not the slots' values; give the pool's shape."""
    import torch

    shape = check_pages(KERNEL, k_pages, v_pages, k_scale, v_scale)
    device = k_pages.device
    check_tensor(KERNEL, "slots", slots, dtype=(torch.int32, torch.int64), shape=(None,), device=device)
    floats = (torch.bfloat16, torch.float16, torch.float32)
    wanted = (slots.shape[0], shape.kv_heads, shape.head_dim)
    for name, tensor in (("key", key), ("value", value)):
        check_tensor(KERNEL, name, tensor, dtype=floats, shape=wanted, device=device, contiguous=False)
        if tensor.stride()[1:] != (shape.head_dim, 1):
            raise KernelInputError(
                KERNEL, f"{name} must be dense in a token's heads; its strides are {list(tensor.stride())}"
            )
        if k_pages.dtype not in {torch.int8, tensor.dtype}:
            raise KernelInputError(KERNEL, f"{name} is {tensor.dtype} and pages are {k_pages.dtype}; they must agree")
    if rope.rotary_dim > shape.head_dim:
        raise KernelInputError(KERNEL, f"rotary_dim {rope.rotary_dim} is greater than head_dim {shape.head_dim}")
    if rope.phase_step.device != device:
        raise KernelInputError(KERNEL, f"rope is on {rope.phase_step.device}, the pages are on {device}")
    if bounds is not None:
        check_bounds(KERNEL, bounds, k_pages, shape)
    return shape
