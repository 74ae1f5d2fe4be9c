"""The tile cache in torch alone; defines what the kernels do, but for the order of tiles that score alike."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from akashic_kernels.block_select.api import Selection
    from akashic_kernels.tile_cache.api import TileTables

_NEVER, _ALWAYS = float("-inf"), float("inf")
SHARE = 0.0625
"""What a step's score moves a page's running mean by."""


def admit(selection: Selection, views: Tensor, view_start: Tensor, tables: TileTables, layer: int, ahead: int) -> None:
    """Do a layer's admission, head by head."""
    import torch

    _, kv_heads, slots = tables.page_in.shape
    pages = tables.slot_of.shape[2] - 1
    starts = view_start.tolist()
    moves: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
    for head in range(kv_heads):
        slot_of, page_in = tables.slot_of[layer, head], tables.page_in[layer, head]
        score = torch.full((pages,), _NEVER)
        named: set[int] = set()
        for row, (first, last) in enumerate(pairwise(starts)):
            of_row = selection.scores[row, head, : last - first].float().cpu()
            score.scatter_reduce_(0, views[first:last, 0].long().cpu(), of_row, "amax")
            named |= set(selection.views[row, head, : int(selection.count[row, head]), 0].tolist())
        means = tables.means[layer, head, :pages]
        old = means.cpu()
        begins = score.isneginf() | ~old.isfinite()
        score = torch.where(begins, score, old + (score - old) * SHARE)
        means.copy_(score)
        score[sorted(named)] = _ALWAYS
        held = [score[page].item() if page < pages else _NEVER for page in page_in.tolist()]
        making_way = sorted(range(slots), key=lambda slot: held[slot])
        lacking = [page for page in sorted(named) if int(slot_of[page]) < 0]
        others = [
            p for p in score.argsort(descending=True, stable=True).tolist() if p not in named and int(slot_of[p]) < 0
        ]
        coming = [(0, page) for page in lacking] + [(1, page) for page in others[:ahead]]
        came_ahead = 0
        for (which, page), slot in zip(coming, making_way, strict=False):
            if which == 1 and not score[page].item() > held[slot]:
                break
            gone = int(page_in[slot])
            if gone < pages:
                slot_of[gone] = -1
            page_in[slot], slot_of[page] = page, slot
            moves[which].append((page * kv_heads + head, slot * kv_heads + head))
            came_ahead += which
        wanted = int(selection.count[:, head].sum())
        tables.told.add_(torch.tensor([wanted, len(lacking), came_ahead], device=tables.told.device))
        for row in range(selection.views.shape[0]):
            chosen = selection.views[row, head, : int(selection.count[row, head])]
            chosen[:, 0] = slot_of[chosen[:, 0].long()]
    for which, listed in enumerate(moves):
        tables.count[layer, which] = len(listed)
        for part, values in zip((tables.source, tables.target), zip(*listed, strict=True), strict=False):
            part[layer, which, : len(listed)] = torch.tensor(values, dtype=torch.int32)


def fetch(
    homes: tuple[Tensor, Tensor], here: tuple[Tensor, Tensor], tables: TileTables, layer: int, which: int
) -> None:
    """Copy the listed tiles."""
    count = int(tables.count[layer, which])
    source, target = (part[layer, which, :count].long() for part in (tables.source, tables.target))
    for home, pool in zip(homes, here, strict=True):
        pool.flatten(0, 1)[target] = home.flatten(0, 1)[source.to(home.device)].to(pool.device)
