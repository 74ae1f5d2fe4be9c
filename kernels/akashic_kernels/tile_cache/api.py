"""The tile cache's two launches a layer: `tile_admit` decides, `tile_fetch` copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from akashic_kernels.backend import Backend, choose, launching, power_of_two
from akashic_kernels.tile_cache import reference
from akashic_kernels.tile_cache.validation import check_admit, check_fetch, check_tables

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from akashic_kernels.block_select.api import Selection

ADMIT, FETCH = "tile_admit", "tile_fetch"
AT_ONCE, AHEAD = 0, 1
PROGRAMS = 32
CHUNK_WORDS = 2048


@dataclass(frozen=True, slots=True, eq=False)
class TileTables:
    """Who stands where: int32, the pages' count meaning no page and -1 no slot.

    slot_of [layers, kv_heads, pages + 1]; page_in [layers, kv_heads, slots]. Slots past `slots` may stand in slot_of: they
    never make way. source, target [layers, 2, room]: tiles (page x kv_heads + head) to be copied at once and ahead, and
    where to (slot x kv_heads + head); count [layers, 2]: how many. told int64 [3]: tiles wanted, lacked, come ahead.
    means float32 [layers, kv_heads, pages + 1]: running means of scores; minus infinity where one begins anew.
    """

    slot_of: Tensor
    page_in: Tensor
    source: Tensor
    target: Tensor
    count: Tensor
    told: Tensor
    score: Tensor
    claim: Tensor
    victims: Tensor
    means: Tensor

    def __post_init__(self) -> None:
        """Refuse tables that don't belong together: the kernels take their sizes from two of them."""
        check_tables(self)


def make_tables(
    layers: int, kv_heads: int, pages: int, slots: int, *, room: int, device: torch.device | str
) -> TileTables:
    """Allocate empty tables; `room` is the most tiles that one layer's step names, all heads together."""
    import torch

    def make(*shape: int, value: int = 0, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.full(shape, value, dtype=dtype, device=device)

    return TileTables(
        make(layers, kv_heads, pages + 1, value=-1),
        make(layers, kv_heads, slots, value=pages),
        make(layers, 2, room),
        make(layers, 2, room),
        make(layers, 2),
        make(3, dtype=torch.int64),
        make(kv_heads, pages + 1, dtype=torch.float32),
        make(kv_heads, pages + 1),
        make(kv_heads, slots),
        torch.full((layers, kv_heads, pages + 1), float("-inf"), device=device),
    )


def tile_admit(
    selection: Selection,
    views: Tensor,
    view_start: Tensor,
    tables: TileTables,
    layer: int,
    *,
    ahead: int = 0,
    backend: Backend | None = None,
) -> None:
    """Give each tile that `selection` names a slot, let those that scored least of late make way, and list the copies.

    `selection` is what `block_select` wrote for `views` and `view_start`; its views' pages become slots. The tiles that it
    names, all rows together, may be as many a head as there are slots. `ahead`: tiles a head at most that come although
    they aren't named, best scores first, where they score more than what makes way.
    """
    check_admit(ADMIT, selection, views, view_start, tables, layer, ahead)
    if choose(ADMIT, tables.page_in, backend) == "reference":
        reference.admit(selection, views, view_start, tables, layer, ahead)
        return
    from akashic_kernels.tile_cache.triton import admit_kernel

    _, kv_heads, slots = tables.page_in.shape
    pages = tables.slot_of.shape[2] - 1
    batch, _, most, _ = selection.views.shape
    tables.count[layer].zero_()
    if batch == 0:
        return
    with launching(ADMIT):
        admit_kernel[(kv_heads,)](
            selection.views, selection.count, selection.scores, views, view_start,
            tables.slot_of[layer], tables.page_in[layer], tables.source[layer], tables.target[layer], tables.count[layer],
            tables.told, tables.score, tables.claim, tables.victims, tables.means[layer],
            batch, selection.scores.shape[2], pages, slots, tables.source.shape[2],
            KV_HEADS=kv_heads, MOST=most, CHOSEN_BLOCK=power_of_two(batch * most), SLOTS_BLOCK=power_of_two(slots),
            PAGES_BLOCK=min(4096, power_of_two(pages + 1)), AHEAD=ahead, SHARE=reference.SHARE, num_warps=8,
        )  # fmt: skip


def tile_fetch(
    k_home: Tensor,
    v_home: Tensor,
    k_tiles: Tensor,
    v_tiles: Tensor,
    tables: TileTables,
    layer: int,
    which: int,
    *,
    programs: int = PROGRAMS,
    backend: Backend | None = None,
) -> None:
    """Copy the tiles that `tile_admit` listed for a layer, `which` AT_ONCE or AHEAD, asynchronously.

    k_home, v_home [pages, kv_heads, ...] lie in pinned RAM, k_tiles, v_tiles [slots, kv_heads, ...] on the device.
    """
    words = check_fetch(FETCH, (k_home, v_home), (k_tiles, v_tiles))
    if choose(FETCH, k_tiles, backend) == "reference":
        reference.fetch((k_home, v_home), (k_tiles, v_tiles), tables, layer, which)
        return
    import torch

    from akashic_kernels.tile_cache.triton import fetch_kernel

    chunk = min(CHUNK_WORDS, power_of_two(words))
    flat = (part.view(-1).view(torch.int32) for part in (k_home, k_tiles, v_home, v_tiles))
    with launching(FETCH):
        fetch_kernel[(programs,)](
            *flat, tables.source[layer, which], tables.target[layer, which], tables.count[layer], which,
            TILE=words, CHUNK=chunk, CHUNKS_PER_TILE=-(-words // chunk), num_warps=4,
        )  # fmt: skip
