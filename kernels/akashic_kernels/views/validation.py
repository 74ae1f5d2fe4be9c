"""Checks of pages, views, queries and rotary parameters; each error names the kernel and the argument."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from akashic_kernels.errors import KernelInputError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from akashic_kernels.rope import Rope

HEAD_DIM_LEAST, HEAD_DIM_MOST = 16, 256
PAGE_SIZES = (16, 32, 64, 128, 256)


class PageShape(NamedTuple):
    """The shape of a pool of pages."""

    pages: int
    kv_heads: int
    page_size: int
    head_dim: int


def check_tensor(
    kernel: str,
    name: str,
    tensor: Tensor,
    *,
    dtype: torch.dtype | tuple[torch.dtype, ...],
    shape: tuple[int | None, ...],
    device: torch.device | None = None,
    contiguous: bool = True,
) -> None:
    """Refuse a tensor of another type, shape (None: any size), place or, if asked, one with gaps."""
    dtypes = dtype if isinstance(dtype, tuple) else (dtype,)
    if tensor.dtype not in dtypes:
        raise KernelInputError(kernel, f"{name} must be {' or '.join(map(str, dtypes))}, not {tensor.dtype}")
    if tensor.dim() != len(shape) or any(
        want is not None and have != want for have, want in zip(tensor.shape, shape, strict=True)
    ):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise KernelInputError(kernel, f"{name} must have the shape [{wanted}], not {list(tensor.shape)}")
    if device is not None and tensor.device != device:
        raise KernelInputError(kernel, f"{name} must be on {device}, not on {tensor.device}")
    if contiguous and not tensor.is_contiguous():
        raise KernelInputError(kernel, f"{name} must be contiguous; its strides are {list(tensor.stride())}")


def check_pages(
    kernel: str, k_pages: Tensor, v_pages: Tensor | None, k_scale: Tensor | None, v_scale: Tensor | None
) -> PageShape:
    """Check a pool of pages with its scales; int8 pages need them, others must have none."""
    import torch

    floats = (torch.bfloat16, torch.float16, torch.float32)
    check_tensor(kernel, "k_pages", k_pages, dtype=(*floats, torch.int8), shape=(None,) * 4)
    shape = PageShape(*k_pages.shape)
    if shape.page_size not in PAGE_SIZES:
        raise KernelInputError(kernel, f"pages hold {shape.page_size} tokens; possible are {PAGE_SIZES}")
    if not HEAD_DIM_LEAST <= shape.head_dim <= HEAD_DIM_MOST or shape.head_dim % 8:
        raise KernelInputError(
            kernel,
            f"head_dim is {shape.head_dim}; possible are multiples of 8 from {HEAD_DIM_LEAST} to {HEAD_DIM_MOST}",
        )
    if v_pages is not None:
        check_tensor(kernel, "v_pages", v_pages, dtype=k_pages.dtype, shape=shape, device=k_pages.device)
    scales = {"k_scale": k_scale} if v_pages is None else {"k_scale": k_scale, "v_scale": v_scale}
    for name, scale in scales.items():
        if (scale is not None) != (k_pages.dtype == torch.int8):
            raise KernelInputError(kernel, f"{name} belongs to int8 pages, and to them only; pages are {k_pages.dtype}")
        if scale is not None:
            check_tensor(kernel, name, scale, dtype=torch.float32, shape=shape[:3], device=k_pages.device)
    return shape


def check_query(kernel: str, query: Tensor, pages: Tensor, shape: PageShape, rope: Rope) -> tuple[int, int]:
    """Check a query [batch, q_heads, head_dim] and the rotary parameters; give batch and group size."""
    import torch

    floats = (torch.bfloat16, torch.float16, torch.float32)
    check_tensor(
        kernel,
        "query",
        query,
        dtype=floats,
        shape=(None, None, shape.head_dim),
        device=pages.device,
        contiguous=False,
    )
    if query.stride(2) != 1:
        raise KernelInputError(kernel, f"query must be dense in its last dimension; its strides are {query.stride()}")
    if pages.dtype not in {torch.int8, query.dtype}:
        raise KernelInputError(kernel, f"query is {query.dtype} and pages are {pages.dtype}; they must agree")
    batch, q_heads = query.shape[:2]
    if q_heads == 0 or q_heads % shape.kv_heads:
        raise KernelInputError(kernel, f"{q_heads} query heads can't share {shape.kv_heads} KV heads evenly")
    if rope.rotary_dim > shape.head_dim:
        raise KernelInputError(kernel, f"rotary_dim {rope.rotary_dim} is greater than head_dim {shape.head_dim}")
    if rope.phase_step.device != pages.device:
        raise KernelInputError(kernel, f"rope is on {rope.phase_step.device}, the pages are on {pages.device}")
    return batch, q_heads // shape.kv_heads


def check_views(
    kernel: str, views: Tensor, view_start: Tensor, query_position: Tensor, batch: int, device: torch.device
) -> None:
    """Check type, shape and place of a batch's views, not their values."""
    import torch

    check_tensor(kernel, "views", views, dtype=torch.int32, shape=(None, 4), device=device)
    check_tensor(kernel, "view_start", view_start, dtype=torch.int32, shape=(batch + 1,), device=device)
    check_tensor(kernel, "query_position", query_position, dtype=torch.int32, shape=(batch,), device=device)


def check_view_values(
    kernel: str, views: Tensor, view_start: Tensor, shape: PageShape, *, max_views: int | None = None
) -> None:
    """Refuse views outside their pages or the pool, starts that fall or pass the end, and rows of over `max_views`.

    Waits for the device.
    """
    start = view_start.cpu()
    if int(start[0]) < 0 or bool((start.diff() < 0).any()) or int(start[-1]) > views.shape[0]:
        raise KernelInputError(kernel, f"view_start must rise within 0..{views.shape[0]}; it is {start.tolist()}")
    longest = int(start.diff().max()) if start.shape[0] > 1 else 0
    if max_views is not None and longest > max_views:
        raise KernelInputError(kernel, f"a row has {longest} views; room was made for {max_views}")
    used = views[int(start[0]) : int(start[-1])].cpu()
    page, offset, length = used[:, 0], used[:, 1], used[:, 2]
    wrong = (page < 0) | (page >= shape.pages) | (offset < 0) | (length < 0) | (offset + length > shape.page_size)
    if bool(wrong.any()):
        index = int(wrong.nonzero()[0])
        raise KernelInputError(
            kernel,
            f"view {index + int(start[0])} (page, offset, length, base) = {used[index].tolist()} is outside"
            f" {shape.pages} pages of {shape.page_size} tokens",
        )
