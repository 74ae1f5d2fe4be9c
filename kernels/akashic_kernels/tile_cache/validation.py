"""What the tile cache refuses: each error names the argument."""

from __future__ import annotations

from typing import TYPE_CHECKING

from akashic_kernels.errors import KernelInputError
from akashic_kernels.views import check_tensor

if TYPE_CHECKING:
    from torch import Tensor

    from akashic_kernels.block_select.api import Selection
    from akashic_kernels.tile_cache.api import TileTables

SLOTS_MOST = 8192
WORD_BYTES = 4


def check_tables(tables: TileTables) -> None:
    """Refuse tables that don't belong together; `page_in` and `slot_of` say what the others must be."""
    import torch

    check_tensor("tile_cache", "page_in", tables.page_in, dtype=torch.int32, shape=(None, None, None))
    layers, kv_heads, slots = tables.page_in.shape
    if not 1 <= slots <= SLOTS_MOST:
        raise KernelInputError("tile_cache", f"a head has {slots} slots; possible are 1 to {SLOTS_MOST}")
    pages, room = tables.slot_of.shape[-1], tables.source.shape[-1]
    wanted: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
        "slot_of": (torch.int32, (layers, kv_heads, pages)),
        "means": (torch.float32, (layers, kv_heads, pages)),
        "score": (torch.float32, (kv_heads, pages)),
        "claim": (torch.int32, (kv_heads, pages)),
        "victims": (torch.int32, (kv_heads, slots)),
        "source": (torch.int32, (layers, 2, room)),
        "target": (torch.int32, (layers, 2, room)),
        "count": (torch.int32, (layers, 2)),
        "told": (torch.int64, (3,)),
    }
    for name, (dtype, shape) in wanted.items():
        table = getattr(tables, name)
        check_tensor("tile_cache", name, table, dtype=dtype, shape=shape, device=tables.page_in.device)


def check_admit(
    kernel: str, selection: Selection, views: Tensor, view_start: Tensor, tables: TileTables, layer: int, ahead: int
) -> None:
    """Check shapes, types and places, not the values; the tables were checked when they were made."""
    import torch

    layers, kv_heads, slots = tables.page_in.shape
    device = tables.page_in.device
    batch, _, most, _ = selection.views.shape
    check_tensor(
        kernel, "selection.views", selection.views, dtype=torch.int32, shape=(None, kv_heads, None, 4), device=device
    )
    heads = (batch, kv_heads)
    check_tensor(kernel, "selection.count", selection.count, dtype=torch.int32, shape=heads, device=device)
    check_tensor(kernel, "selection.scores", selection.scores, dtype=torch.float32, shape=(*heads, None), device=device)
    check_tensor(kernel, "views", views, dtype=torch.int32, shape=(None, 4), device=device)
    check_tensor(kernel, "view_start", view_start, dtype=torch.int32, shape=(batch + 1,), device=device)
    if not 0 <= layer < layers:
        raise KernelInputError(kernel, f"layer is {layer}; the tables are of {layers}")
    room = tables.source.shape[2]
    if ahead < 0 or kv_heads * (min(batch * most, slots) + ahead) > room:
        raise KernelInputError(
            kernel,
            f"{kv_heads} heads of {batch} x {most} views, {slots} slots and {ahead} ahead don't fit lists of {room}",
        )


def check_fetch(kernel: str, homes: tuple[Tensor, Tensor], here: tuple[Tensor, Tensor]) -> int:
    """Check K and V in RAM and on the device, [pages, kv_heads, ...]; give a tile's size in words."""
    for name, home, pool in zip(("k", "v"), homes, here, strict=True):
        if home.shape[1:] != pool.shape[1:] or home.dtype != pool.dtype or home.dim() < 3:
            raise KernelInputError(
                kernel,
                f"tiles of {name} must be alike: {home.dtype} {list(home.shape[1:])} and {pool.dtype} {list(pool.shape[1:])}",
            )
        if not home.is_contiguous() or not pool.is_contiguous():
            raise KernelInputError(kernel, f"{name} must be contiguous in RAM and on the device")
        if home.device.type != "cpu" or (pool.is_cuda and not home.is_pinned()):
            raise KernelInputError(kernel, f"{name} must come from pinned RAM, not from {home.device}")
    size_bytes = homes[0].dtype.itemsize * homes[0].shape[2:].numel()
    if size_bytes % WORD_BYTES:
        raise KernelInputError(kernel, f"tiles must be whole {WORD_BYTES}-byte words, not {size_bytes} bytes")
    return size_bytes // WORD_BYTES
