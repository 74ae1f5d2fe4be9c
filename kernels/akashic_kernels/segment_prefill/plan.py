"""What one launch of segment prefill does: segments cut into tiles of queries, long ones of few queries into pieces.

A plan is made once a step on the host and serves every layer. It knows views, positions and the shape of the heads, and
nothing of keys and values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from akashic_kernels.rope import Rope
    from akashic_kernels.views import PageShape

SEGMENT_COLUMNS = ("query_start", "query_count", "view_start", "view_count", "position_start")
LEAST_PIECE_VIEWS = 8
"""A piece of fewer views than this costs more in merging than it saves in waiting."""


@dataclass(frozen=True, slots=True, eq=False)
class TileTables:
    """Tiles and merges as the kernels read them.

    A tile: first query, queries, view start, view stop, tokens visible to its first query, tokens in earlier views of the
    segment, partial result's index or -1 for a tile that writes its answer itself, first query's position.
    A merge: first query, queries, first partial, partials.
    """

    tiles: Tensor
    merges: Tensor
    partial_count: int


@dataclass(frozen=True, slots=True, eq=False)
class KernelTables:
    """What the kernels read on their device; `view_phase` float32 [views, rotary_dim]: cosines, then sines, of the bases."""

    views: Tensor
    view_phase: Tensor
    cut: TileTables
    tile_rows: int


@dataclass(frozen=True, slots=True, eq=False)
class SegmentPlan:
    """A step's segments, checked and cut; `kernel` is None where the reference runs."""

    segments: Tensor
    views: Tensor
    rope: Rope
    query_count: int
    query_heads: int
    shape: PageShape
    device: torch.device
    kernel: KernelTables | None


def visible_tokens(views: Tensor) -> Tensor:
    """Return how many tokens stand in the views before each one, and in all of them last: int64, one more than views."""
    import torch

    seen = torch.zeros(len(views) + 1, dtype=torch.int64)
    torch.cumsum(views[:, 2].to(torch.int64), 0, out=seen[1:])
    return seen


def cut_tiles(segments: Tensor, views: Tensor, *, tile_queries: int, kv_heads: int, programs: int) -> TileTables:
    """Cut each segment into tiles of `tile_queries`, and tiles into pieces when there are too few to fill `programs`.

    Tiles are ordered by the views that they read, most first, so that the last to finish are short.
    """
    import torch

    rows = _whole_tiles(segments, views, tile_queries)
    widths = rows[:, 3] - rows[:, 2]
    piece = _piece_views(widths, max(1, programs // kv_heads))
    split = widths > piece
    whole = rows[~split]
    pieces, merges = _cut_pieces(rows[split], views, piece)
    tiles = torch.cat([whole, pieces])
    order = torch.argsort(tiles[:, 3] - tiles[:, 2], descending=True, stable=True)
    return TileTables(tiles[order].to(torch.int32), merges.to(torch.int32), len(pieces))


def _piece_views(widths: Tensor, most: int) -> int:
    """Give the least number of views a piece that makes at most `most` pieces of all tiles, or the widest tile's."""
    low, high = LEAST_PIECE_VIEWS, max(LEAST_PIECE_VIEWS, int(widths.max()) if len(widths) else 0)
    while low < high:
        middle = (low + high) // 2
        if int((-(-widths // middle)).sum()) <= most:
            high = middle
        else:
            low = middle + 1
    return low


def _whole_tiles(segments: Tensor, views: Tensor, tile_queries: int) -> Tensor:
    """Give all segments' tiles uncut; a tile's views end with the one that holds its last query's own token."""
    import torch

    query_start, query_count, view_start, view_count, position = segments.to(torch.int64).unbind(1)
    seen = visible_tokens(views)
    tiles = -(-query_count // tile_queries)
    segment = torch.repeat_interleave(tiles)
    first = (torch.arange(len(segment)) - (torch.cumsum(tiles, 0) - tiles)[segment]) * tile_queries
    count = torch.clamp(query_count[segment] - first, max=tile_queries)
    before = seen[view_start]
    context = seen[view_start + view_count] - before - query_count
    limit = context[segment] + first + 1
    stop = torch.searchsorted(seen[1:], before[segment] + limit + count - 1) + 1
    zero = torch.zeros_like(first)
    columns = (query_start[segment] + first, count, view_start[segment], stop, limit, zero, zero - 1)
    return torch.stack((*columns, position[segment] + first), 1)


def _cut_pieces(rows: Tensor, views: Tensor, piece: int) -> tuple[Tensor, Tensor]:
    """Cut each tile into pieces of `piece` views; return the pieces and the merges that join them."""
    import torch

    seen = visible_tokens(views)
    pieces: list[list[int]] = []
    merges: list[list[int]] = []
    for first, count, start, stop, limit, _, _, position in rows.tolist():
        begins = range(start, stop, piece)
        merges.append([first, count, len(pieces), len(begins)])
        for begin in begins:
            before = int(seen[begin] - seen[start])
            pieces.append([first, count, begin, min(begin + piece, stop), limit, before, len(pieces), position])
    return (
        torch.tensor(pieces, dtype=torch.int64).reshape(-1, 8),
        torch.tensor(merges, dtype=torch.int64).reshape(-1, 4),
    )
