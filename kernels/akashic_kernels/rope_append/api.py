"""Append of new tokens to pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from akashic_kernels.backend import Backend, can_overlap, choose, launching, power_of_two
from akashic_kernels.block_summary.reference import OUTWARDS
from akashic_kernels.rope_append.reference import rope_append_reference
from akashic_kernels.rope_append.validation import KERNEL, check_arguments

if TYPE_CHECKING:
    from torch import Tensor

    from akashic_kernels.rope import Rope
    from akashic_kernels.views import PageShape

FEW_TOKENS = 64
"""Up to so many tokens each has its own program, as in decode; more share programs by 32, as in prefill."""


def rope_append(
    key: Tensor,
    value: Tensor,
    slots: Tensor,
    rope: Rope,
    k_pages: Tensor,
    v_pages: Tensor,
    *,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    bounds: Tensor | None = None,
    backend: Backend | None = None,
) -> None:
    """Write `key`, turned by its slot in the page, and `value`, both [tokens, kv_heads, head_dim], to their pages.

    `slots` [tokens] int32 or int64: page * page_size + slot in the page, or negative for a token to leave out. Tokens of
    one page must be neighbours, in any order of slots. int8 pages take the scales too. `bounds`
    [pages, kv_heads, 2, head_dim] are widened by the new keys; a page whose slot 0 is written begins anew.
    """
    import torch

    shape = check_arguments(key, value, slots, rope, k_pages, v_pages, k_scale, v_scale, bounds)
    if slots.shape[0] == 0:
        return
    if choose(KERNEL, k_pages, backend) == "reference":
        rope_append_reference(
            key, value, slots, rope, k_pages, v_pages,
            k_scale=k_scale, v_scale=v_scale, bounds=bounds, compute=torch.float32,
        )  # fmt: skip
        return
    _launch(key, value, slots, rope, k_pages, v_pages, k_scale, v_scale, bounds, shape)


def _launch(
    key: Tensor,
    value: Tensor,
    slots: Tensor,
    rope: Rope,
    k_pages: Tensor,
    v_pages: Tensor,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    bounds: Tensor | None,
    shape: PageShape,
) -> None:
    import torch

    from akashic_kernels.rope_append.triton import rope_append_kernel

    count = slots.shape[0]
    own = 1 if count <= FEW_TOKENS else 32
    block = min(shape.page_size, power_of_two(count))
    overlap = key.is_cuda and can_overlap(key.device)
    moved = k_scale is not None and bounds is not None and bounds.dtype != torch.float32
    with launching(KERNEL):
        rope_append_kernel[(-(-count // own), shape.kv_heads)](
            key, value, slots, k_pages, v_pages, k_scale, v_scale, bounds,
            rope.phase_step, rope.attention_scale, key.stride(0), value.stride(0), count,
            KV_HEADS=shape.kv_heads, HEAD_DIM=shape.head_dim, HEAD_BLOCK=power_of_two(shape.head_dim),
            ROTARY=rope.rotary_dim, INTERLEAVED=rope.layout == "interleaved", PAGE=shape.page_size,
            OWN=own, BLOCK=block, QUANTISED=k_scale is not None, BOUNDED=bounds is not None,
            OUTWARDS=OUTWARDS if moved else 0.0, OVERLAP=overlap, num_warps=8 if block > 32 else 4,
            **({"launch_pdl": True} if overlap else {}),
        )  # fmt: skip
