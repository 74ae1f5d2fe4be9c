"""The tiles of KV that sparse decode finds on the GPU: a cache over pages in RAM, kept by the device itself.

A tile is one page of one KV head in one layer. Each step names the tiles that it will read. Those that lack are brought in
before anything attends to them, in place of those that scored least of late; the best of the others may follow on a stream of
their own, while later layers compute, as past scores are a guess at the next ones. No step waits for the host, so all of this
can be part of a CUDA graph. New tokens go to *open* pages, which stand here whole and are written back when closed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch

from akashic_kernels.block_select.api import Selection
from akashic_kernels.kv_gather import kv_gather, kv_scatter
from akashic_kernels.tile_cache import make_tables, tile_admit, tile_fetch
from akashic_kernels.tile_cache.api import AHEAD, AT_ONCE


class HotTiles:
    """`slots` tiles of each KV head in each layer, and `open_pages` whole pages, over K, V and perhaps scales in RAM.

    bounds [layers, pages + 1, kv_heads, 2, head_dim]: the last page is nobody's. prefetch: tiles a head at most that come
    ahead of a step.
    """

    def __init__(
        self,
        home: tuple[torch.Tensor, ...],
        bounds: torch.Tensor,
        device: torch.device,
        slots: int,
        open_pages: int,
        prefetch: int,
    ) -> None:
        self._layers, self._pages, self._heads = home[0].shape[:3]
        self._home, self._bounds = home, bounds
        self.slots, self.open_pages, self.prefetch = slots, open_pages, prefetch
        count = slots + open_pages
        self._here = tuple(
            torch.zeros(self._layers, count, *part.shape[2:], dtype=part.dtype, device=device) for part in home
        )
        self.k, self.v = self._here[:2]
        # Of open pages only; rope_append finds bounds by where it writes.
        self.open_bounds = torch.zeros(*self.k.shape[:3], *bounds.shape[3:], dtype=bounds.dtype, device=device)
        room = self._heads * (slots + prefetch)
        self._tables = make_tables(self._layers, self._heads, self._pages, slots, room=room, device=device)
        self._head = torch.arange(self._heads, device=device)
        self._open: OrderedDict[int, int] = OrderedDict()
        self._lent_layers = 0
        self._device = device
        self._aside: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        tables = self._tables
        small = (tables.slot_of, tables.page_in, tables.source, tables.target, tables.means, self.open_bounds)
        return sum(table.nbytes for table in (*self._here, *small))

    def counts(self) -> tuple[int, int, int]:
        """Return how many tiles were wanted, how many of them lacked, and how many came ahead; waits for the device."""
        wanted, lacked, ahead = self._tables.told.tolist()
        return wanted, lacked, ahead

    def of_layer(self, layer: int) -> tuple[torch.Tensor, ...]:
        """Return the parts of a layer [slots, kv_heads, page_tokens, ...]."""
        return tuple(part[layer] for part in self._here)

    def lend(self, count: int) -> list[tuple[torch.Tensor, ...]] | None:
        """Return rooms for all pages of `count` layers where tiles stand, None if these take less; `lose` before each use."""
        pages, here = self._pages, [part.flatten(0, 1) for part in self._here]
        if len(here[0]) < count * pages:
            return None
        self._lent_layers = -(-count * pages // (self.slots + self.open_pages))
        return [tuple(part[room * pages : (room + 1) * pages] for part in here) for room in range(count)]

    def lose(self) -> None:
        """Let go of the tiles where others were given room. No page may be open."""
        assert not self._open
        self._tables.page_in[: self._lent_layers] = self._pages
        self._tables.slot_of[: self._lent_layers] = -1

    # -- open pages --------------------------------------------------------------------------------------------

    def open(self, pages: Sequence[int]) -> list[int]:
        """Return the slot of each page, where new tokens may be written; pages must be `open_pages` at most."""
        distinct = list(dict.fromkeys(pages))
        assert len(distinct) <= self.open_pages
        for page in distinct:
            if page in self._open:
                self._open.move_to_end(page)
        lacking = [page for page in distinct if page not in self._open]
        if lacking:
            excess = len(self._open) + len(lacking) - self.open_pages
            self._write_back([page for page in self._open if page not in distinct][: max(0, excess)])
            self.forget(lacking)
            free = sorted(set(range(self.slots, self.slots + self.open_pages)) - set(self._open.values()))
            self._bring_whole(dict(zip(lacking, free, strict=False)))
        return [self._open[page] for page in pages]

    def close(self) -> None:
        """Write all open pages back."""
        self._write_back(list(self._open))

    def forget(self, pages: Sequence[int]) -> None:
        """Let go of the tiles of pages that are about to be written elsewhere. None of them may be open."""
        if not pages:
            return
        assert not set(pages) & set(self._open)
        gone = torch.zeros(self._pages + 1, dtype=torch.bool, device=self._device)
        gone[torch.tensor(pages, device=self._device)] = True
        page_in = self._tables.page_in
        page_in[gone[page_in.long()]] = self._pages
        self._tables.slot_of[:, :, gone] = -1
        self._tables.means[:, :, gone] = -torch.inf

    def _bring_whole(self, placed: dict[int, int]) -> None:
        pages, slots = (torch.tensor(x, device=self._device) for x in (list(placed), list(placed.values())))
        for home, here in zip(self._home, self._here, strict=True):
            kv_gather(_tiles(home), self._whole(pages, self._pages), _tiles(here), self._whole(slots, self.k.shape[1]))
        self.open_bounds[:, slots] = self._bounds[:, pages]
        self._tables.slot_of[:, :, pages] = slots.int()
        self._open.update(placed)

    def _write_back(self, closed: Sequence[int]) -> None:
        if not closed:
            return
        pages, slots = (torch.tensor(x, device=self._device) for x in (closed, [self._open.pop(p) for p in closed]))
        for home, here in zip(self._home, self._here, strict=True):
            kv_scatter(_tiles(here), self._whole(slots, self.k.shape[1]), _tiles(home), self._whole(pages, self._pages))
        self._tables.slot_of[:, :, pages] = -1

    def _whole(self, numbers: torch.Tensor, of: int) -> torch.Tensor:
        """Return the tiles of whole pages, all layers and heads, in a pool of `of` pages a layer."""
        layers = torch.arange(self._layers, device=self._device)[:, None, None]
        return ((layers * of + numbers[None, :, None]) * self._heads + self._head).flatten()

    # -- a layer of a step -------------------------------------------------------------------------------------

    def publish_bounds(self, layer: int, pages: torch.Tensor, slots: torch.Tensor) -> None:
        """Make the bounds of open pages those of their pages; rows that write nothing name nobody's page."""
        self._bounds[layer].index_copy_(0, pages, self.open_bounds[layer].index_select(0, slots))

    def admit(self, layer: int, selection: Selection, views: torch.Tensor, view_start: torch.Tensor) -> None:
        """Bring in what the selection names, and rewrite its views to the slots; call `bring_ahead` after attention."""
        tile_admit(selection, views, view_start, self._tables, layer, ahead=self.prefetch)
        self._bring(layer, AT_ONCE)

    def bring_ahead(self, layer: int) -> None:
        """Let what the next step may want follow, beside what comes after on the stream; the last layer waits for it all."""
        if not self.prefetch:
            return
        if self._aside is None:
            self._bring(layer, AHEAD)
            return
        here = torch.cuda.current_stream(self._device)
        self._aside.wait_stream(here)
        with torch.cuda.stream(self._aside):
            self._bring(layer, AHEAD)
        if layer == self._layers - 1:
            here.wait_stream(self._aside)

    def _bring(self, layer: int, which: int) -> None:
        home, here = ([part[layer] for part in parts] for parts in (self._home, self._here))
        for first in range(0, len(home), 2):  # K and V, then their scales
            (k_home, v_home), (k_tiles, v_tiles) = home[first : first + 2], here[first : first + 2]
            tile_fetch(k_home, v_home, k_tiles, v_tiles, self._tables, layer, which)

    def check(self) -> None:
        """Assert that tables agree and that tiles hold what RAM holds; for tests."""
        slot_of, page_in = self._tables.slot_of[:, :, :-1].cpu(), self._tables.page_in.cpu()
        open_pages = set(self._open)
        for layer, head, slot in (page_in < self._pages).nonzero().tolist():
            page = int(page_in[layer, head, slot])
            assert page not in open_pages
            assert int(slot_of[layer, head, page]) == slot
            for home, here in zip(self._home, self._here, strict=True):
                assert torch.equal(home[layer, page, head], here[layer, slot, head].cpu())
        for layer, head, page in (slot_of >= 0).nonzero().tolist():
            slot = int(slot_of[layer, head, page])
            assert self._open[page] == slot if page in open_pages else int(page_in[layer, head, slot]) == page


def _tiles(pool: torch.Tensor) -> torch.Tensor:
    """Return a pool [layers, pages, kv_heads, ...] as a list of tiles."""
    return pool.flatten(3).flatten(0, 2)
