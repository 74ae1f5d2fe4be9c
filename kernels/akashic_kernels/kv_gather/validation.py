"""What moving pieces refuses: each error names the argument."""

from __future__ import annotations

from typing import TYPE_CHECKING

from akashic_kernels.errors import KernelInputError

if TYPE_CHECKING:
    from torch import Tensor

WORD_BYTES = 4


def check_pieces(
    kernel: str, host: Tensor, host_index: Tensor, pages: Tensor, page_index: Tensor, programs: int
) -> int:
    """Check both pools and their indices, not the indices' values; give a piece's size in words."""
    for name, pool in (("host", host), ("pages", pages)):
        if pool.dim() < 2 or not pool.is_contiguous():
            raise KernelInputError(
                kernel,
                f"{name} must be contiguous [pieces, ...], not {list(pool.shape)} of strides {list(pool.stride())}",
            )
    if host.shape[1:] != pages.shape[1:] or host.dtype != pages.dtype:
        raise KernelInputError(
            kernel,
            f"pieces must be alike: host's are {host.dtype} {list(host.shape[1:])}, "
            f"pages' are {pages.dtype} {list(pages.shape[1:])}",
        )
    size_bytes = pages.dtype.itemsize * pages.shape[1:].numel()
    if size_bytes == 0 or size_bytes % WORD_BYTES or any(pool.data_ptr() % WORD_BYTES for pool in (host, pages)):
        raise KernelInputError(kernel, f"pieces must be whole {WORD_BYTES}-byte words, not {size_bytes} bytes")
    if host.device.type != "cpu" or (pages.is_cuda and not host.is_pinned()):
        raise KernelInputError(
            kernel, f"host must be pinned memory, which the GPU reads in place, not pageable memory on {host.device}"
        )
    _check_index(kernel, host_index, page_index, pages)
    if programs < 1:
        raise KernelInputError(kernel, f"programs must be 1 or more, not {programs}")
    return size_bytes // WORD_BYTES


def _check_index(kernel: str, host_index: Tensor, page_index: Tensor, pages: Tensor) -> None:
    import torch

    for name, index in (("host_index", host_index), ("page_index", page_index)):
        if index.dim() != 1 or index.dtype not in {torch.int32, torch.int64} or not index.is_contiguous():
            raise KernelInputError(
                kernel, f"{name} must be contiguous int32 or int64 [n], not {index.dtype} {list(index.shape)}"
            )
        if index.device != pages.device:
            raise KernelInputError(kernel, f"{name} is on {index.device}, the pages are on {pages.device}")
    if host_index.shape != page_index.shape:
        raise KernelInputError(
            kernel, f"host_index names {host_index.shape[0]} pieces and page_index {page_index.shape[0]}"
        )
