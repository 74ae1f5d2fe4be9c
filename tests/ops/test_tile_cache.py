"""The tile cache: what is named has a slot and its own bytes, the least of the others make way, both backends alike."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from akashic_kernels.block_select import make_selection
from akashic_kernels.block_select.api import Selection
from akashic_kernels.errors import KernelInputError
from akashic_kernels.tile_cache import TileTables, make_tables, tile_admit, tile_fetch

LAYERS, HEADS, TILE = 2, 3, (16, 6)


class Cache:
    """Tiles of `pages` pages, numbered by their bytes, and `slots` slots a head; one more slot stands open."""

    def __init__(self, pages: int, slots: int, device: str, most: int) -> None:
        self.pages, self.slots, self.device = pages, slots, device
        self.tables: TileTables = make_tables(LAYERS, HEADS, pages, slots, room=HEADS * most, device=device)
        numbers = torch.arange(LAYERS * pages * HEADS, dtype=torch.float32).view(LAYERS, pages, HEADS, 1, 1)
        self.home = [(numbers + offset).expand(LAYERS, pages, HEADS, *TILE).contiguous() for offset in (0.25, 0.75)]
        if device == "cuda":
            self.home = [part.pin_memory() for part in self.home]
        self.here = [torch.full((LAYERS, slots + 1, HEADS, *TILE), torch.nan, device=device) for _ in "kv"]

    def step(self, layer: int, selection: Selection, views: Tensor, start: Tensor, ahead: int, backend: Any) -> None:
        tile_admit(selection, views, start, self.tables, layer, ahead=ahead, backend=backend)
        (k_home, v_home), (k, v) = ([part[layer] for part in pools] for pools in (self.home, self.here))
        for which in (0, 1):
            tile_fetch(k_home, v_home, k, v, self.tables, layer, which, programs=5, backend=backend)

    def check(self, layer: int) -> None:
        slot_of, page_in = self.tables.slot_of[layer].cpu(), self.tables.page_in[layer].cpu()
        for head in range(HEADS):
            held = [page for page in page_in[head].tolist() if page < self.pages]
            assert len(set(held)) == len(held)
            there = [p for p in range(self.pages) if 0 <= int(slot_of[head, p]) < self.slots]
            assert sorted(held) == there
            for page in held:
                slot = int(slot_of[head, page])
                assert int(page_in[head, slot]) == page
                for home, here in zip(self.home, self.here, strict=True):
                    assert torch.equal(home[layer, page, head], here[layer, slot, head].cpu())


def _selection(chance: torch.Generator, pages: int, rows: int, most: int, device: str) -> tuple[Any, ...]:
    """Return a selection over random views, some pages seen twice and some by several rows, with all scores different."""
    lists, starts = [], [0]
    for row in range(rows):  # the first sees every page: one that nobody sees scores like any other such
        least = pages if row == 0 else most
        seen = torch.randperm(pages, generator=chance)[: int(torch.randint(least, pages + 1, (1,), generator=chance))]
        seen = torch.cat((seen, seen[:1]))
        lists.append(torch.stack([seen, torch.zeros_like(seen), torch.ones_like(seen), torch.zeros_like(seen)], 1))
        starts.append(starts[-1] + len(seen))
    views = torch.cat(lists).int()
    longest = max(len(part) for part in lists) + 3
    selection = make_selection(rows, HEADS, longest, top_k=most, sink=0, recent=0, device="cpu")
    selection.views.fill_(-7)
    # Means of numbers with as many digits as these are not equal by chance.
    order = torch.randperm(rows * HEADS * longest, generator=chance).view(rows, HEADS, longest) - 50.0
    selection.scores.copy_(order + 0.5 * torch.rand(order.shape, generator=chance))
    for row in range(rows):
        for head in range(HEADS):
            count = int(torch.randint(0, most + 1, (1,), generator=chance))
            chosen = torch.randperm(len(lists[row]), generator=chance)[:count].sort().values
            selection.count[row, head] = count
            selection.views[row, head, :count] = lists[row][chosen].int()
    moved = Selection(*(getattr(selection, n).to(device) for n in ("views", "index", "count", "scores", "arrived")))
    return moved, views.to(device), torch.tensor(starts, dtype=torch.int32, device=device)


def _copy(selection: Selection) -> Selection:
    return Selection(*(getattr(selection, n).clone() for n in ("views", "index", "count", "scores", "arrived")))


def _listed(tables: TileTables, layer: int, which: int) -> list[int]:
    return sorted(tables.source[layer, which, : int(tables.count[layer, which])].tolist())


@pytest.mark.parametrize(
    ("pages", "slots", "rows", "most", "ahead"), [(11, 5, 1, 5, 0), (40, 13, 2, 5, 3), (67, 64, 1, 17, 2)]
)
def test_both_backends_bring_and_keep_the_same_tiles(
    pages: int, slots: int, rows: int, most: int, ahead: int, device: str
) -> None:
    chance = torch.Generator().manual_seed(pages * 7 + ahead)
    caches = {name: Cache(pages, slots, device, rows * most + ahead) for name in ("triton", "reference")}
    for number in range(3):
        layer = number % LAYERS
        selection, views, start = _selection(chance, pages, rows, most, device)
        for name, cache in caches.items():
            own = _copy(selection)
            cache.step(layer, own, views, start, ahead, name)
            cache.check(layer)
            for row in range(rows):
                for head in range(HEADS):
                    count = int(selection.count[row, head])
                    slot = own.views[row, head, :count, 0].long().cpu()
                    assert (
                        cache.tables.page_in[layer, head].cpu()[slot].tolist()
                        == selection.views[row, head, :count, 0].tolist()
                    )
                    assert torch.equal(own.views[row, head, :, 1:], selection.views[row, head, :, 1:])
                    assert torch.equal(own.views[row, head, count:], selection.views[row, head, count:])
        first, second = (cache.tables for cache in caches.values())
        for which in (0, 1):
            assert _listed(first, layer, which) == _listed(second, layer, which)
        assert torch.equal(first.told, second.told)
        kept = [cache.tables.page_in[layer].sort(dim=1).values for cache in caches.values()]
        assert torch.equal(*kept)
    assert int(first.told[1]) > 0
    assert (int(first.told[2]) > 0) == (ahead > 0)


@pytest.mark.parametrize("backend", ["triton", "reference"])
def test_open_pages_stay_where_they_are_and_bring_nothing(backend: Any, device: str) -> None:
    cache = Cache(9, 2, device, 2)
    cache.tables.slot_of[:, :, 4] = cache.slots  # the open slot
    selection = make_selection(1, HEADS, 9, top_k=2, sink=0, recent=0, device=device)
    views = torch.tensor([[page, 0, 16, 16 * page] for page in range(9)], dtype=torch.int32, device=device)
    start = torch.tensor([0, 9], dtype=torch.int32, device=device)
    selection.views[0, :, 0], selection.views[0, :, 1] = views[4], views[7]
    selection.count.fill_(2)
    cache.step(0, selection, views, start, 0, backend)
    assert selection.views[0, :, 0, 0].tolist() == [cache.slots] * HEADS
    assert cache.tables.count[0].tolist() == [HEADS, 0]
    assert bool((cache.tables.slot_of[0, :, 4] == cache.slots).all())


@pytest.mark.parametrize("backend", ["triton", "reference"])
def test_what_scored_well_of_late_stays_when_one_step_scores_it_least(backend: Any, device: str) -> None:
    cache = Cache(4, 2, device, 1)
    selection = make_selection(1, HEADS, 4, top_k=1, sink=0, recent=0, device=device)
    views = torch.tensor([[page, 0, 16, 16 * page] for page in range(4)], dtype=torch.int32, device=device)
    start = torch.tensor([0, 4], dtype=torch.int32, device=device)
    selection.count.fill_(1)
    for page, scores in ((0, [9.0, 1, 0, 0]), (0, [9.0, 1, 0, 0]), (1, [9.0, 8, 0, 0]), (2, [0.0, 5, 9, 0])):
        selection.views[0, :, 0] = views[page]
        selection.scores[:] = torch.tensor(scores, device=device)
        cache.step(0, selection, views, start, 0, backend)
    assert cache.tables.page_in[0].sort(dim=1).values.tolist() == [[0, 2]] * HEADS


@pytest.mark.parametrize(
    ("change", "word"), [({"layer": 2}, "layer"), ({"ahead": -1}, "ahead"), ({"ahead": 50}, "lists of")]
)
def test_wrong_admissions_are_refused_by_name(change: dict[str, Any], word: str) -> None:
    cache = Cache(9, 2, "cpu", 2)
    selection = make_selection(1, HEADS, 9, top_k=2, sink=0, recent=0, device="cpu")
    views, start = torch.zeros(9, 4, dtype=torch.int32), torch.tensor([0, 9], dtype=torch.int32)
    arguments: dict[str, Any] = {"layer": 0, "ahead": 0} | change
    with pytest.raises(KernelInputError, match=word):
        tile_admit(selection, views, start, cache.tables, **arguments)


@pytest.mark.parametrize("name", ["slot_of", "source", "target", "count", "told", "score", "claim", "victims", "means"])
@pytest.mark.parametrize("change", ["shape", "type"])
def test_tables_that_dont_belong_together_cant_be_made(name: str, change: str) -> None:
    tables = make_tables(LAYERS, HEADS, 9, 2, room=6, device="cpu")
    table = getattr(tables, name)
    with pytest.raises(KernelInputError, match=f"tile_cache: {name} must"):
        replace(
            tables,
            **{name: table[..., :0, :] if table.dim() > 1 else table[:2]}
            if change == "shape"
            else {name: table.half()},
        )


@pytest.mark.parametrize("name", ["count", "scores"])
def test_a_selection_of_other_heads_is_refused(name: str) -> None:
    cache = Cache(9, 2, "cpu", 2)
    selection = make_selection(1, HEADS, 9, top_k=2, sink=0, recent=0, device="cpu")
    selection = replace(selection, **{name: getattr(selection, name)[:, 1:].contiguous()})
    views, start = torch.zeros(9, 4, dtype=torch.int32), torch.tensor([0, 9], dtype=torch.int32)
    with pytest.raises(KernelInputError, match=rf"selection\.{name} must"):
        tile_admit(selection, views, start, cache.tables, 0)


@pytest.mark.parametrize("backend", ["triton", "reference"])
def test_a_step_of_no_rows_lists_no_copy(backend: Any, device: str) -> None:
    cache = Cache(9, 2, device, 2)
    selection = make_selection(0, HEADS, 9, top_k=2, sink=0, recent=0, device=device)
    cache.tables.count.fill_(1)  # as the step before left it
    views, start = torch.zeros(0, 4, dtype=torch.int32, device=device), torch.zeros(1, dtype=torch.int32, device=device)
    tile_admit(selection, views, start, cache.tables, 0, backend=backend)
    assert cache.tables.count.tolist() == [[0, 0]] + [[1, 1]] * (LAYERS - 1)


def test_tiles_that_are_not_alike_are_refused() -> None:
    cache = Cache(9, 2, "cpu", 2)
    k, v = (part[0] for part in cache.home)
    with pytest.raises(KernelInputError, match="alike"):
        tile_fetch(k, v, cache.here[0][0].half(), cache.here[1][0], cache.tables, 0, 0)
