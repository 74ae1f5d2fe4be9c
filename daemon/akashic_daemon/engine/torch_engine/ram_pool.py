"""KV that stands in RAM, for contexts beyond the GPU's memory: all pages pinned there, bounds and hot tiles on the GPU.

Two ways lead to it. `hot` keeps the tiles (one page of one KV head) that sparse decode reads most; `stage` brings one layer's
pages at a time, all that a step sees, which is what prefill and dense decode need, in the place of some layers' hot tiles.
Whoever reads or writes pages in RAM closes the open ones first, and whoever writes makes `hot` forget them, so that each
token's KV has one place that counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch

from akashic_daemon.engine.torch_engine.architecture import Architecture
from akashic_daemon.engine.torch_engine.hot_tiles import HotTiles
from akashic_daemon.engine.torch_engine.pool import Cells, KvPool, Stored
from akashic_daemon.engine.torch_engine.stage import ROOMS, Stage
from akashic_kernels.block_summary import update_bounds


class RamPool(KvPool):
    """A pool whose K and V lie in RAM, and tiles of which the device keeps, `hot_pages` of each KV head.

    hot_pages: 0 keeps none, and every step is staged. open_pages: pages at most that new tokens go to without staging.
    prefetch: tiles a head at most that come ahead of a step. bounded: whether there are bounds, which hot tiles need.
    """

    def __init__(
        self,
        shape: Architecture,
        pages: int,
        page_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        hot_pages: int,
        open_pages: int,
        prefetch: int,
        bounded: bool,
    ) -> None:
        super().__init__(shape, pages, page_tokens, dtype, device, bounded=bounded, in_ram=True)
        home = (self.k, self.v, *self.scales)
        self.hot: HotTiles | None = None
        if hot_pages:
            assert bounded
            self.hot = HotTiles(home, self.all_bounds, device, hot_pages, open_pages, prefetch)
        self.stage = Stage(home, device, self.hot.lend(min(ROOMS, len(self.k))) if self.hot else None)

    @property
    def ram_bytes(self) -> int:
        """Bytes that stand in RAM."""
        return sum(part.nbytes for part in (self.k, self.v, *self.scales))

    @property
    def gpu_bytes(self) -> int:
        """Bytes that stand on the device."""
        return self.stage.nbytes + self.all_bounds.nbytes + (self.hot.nbytes if self.hot else 0)

    def begin_stage(self, seen: list[int], written: list[int]) -> None:
        """Give the stage its room, with nothing open, and let it begin a step that sees and writes these pages."""
        self.close_pages(written)
        if self.hot is not None:
            self.hot.lose()
        self.stage.begin(seen, written)

    def close_pages(self, written: Iterable[int] = ()) -> None:
        """Bring what was decoded into RAM, and forget hot tiles of pages that are about to be `written` there."""
        if self.hot is not None:
            self.hot.close()
            self.hot.forget(list(written))

    def read(self, cells: torch.Tensor) -> Iterator[Stored]:
        """Yield copies of what these cells hold, layer by layer, in RAM."""
        self.close_pages()
        self._wait()
        return super().read(cells)

    def write(self, cells: torch.Tensor, stored: Iterable[Stored], source: torch.Tensor) -> None:
        """Put what was stored into these cells, in RAM."""
        self.close_pages(torch.unique(cells // self.page_tokens).tolist())
        self._wait()
        super().write(cells, stored, source)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def renew(self, cells: Cells) -> None:
        """Bring the bounds of these cells' pages up to date, from copies of the pages."""
        if not self.bounds:
            return
        pages, runs = self.written_runs(cells)
        runs[:, 0] = np.arange(len(pages))
        on_device = torch.from_numpy(runs).to(self.device)
        for layer, bounds in enumerate(self.bounds):
            k, scale = self.k[layer][pages].to(self.device), self.scales_of(layer)["k_scale"]
            own = bounds[pages]
            update_bounds(own, k, on_device, k_scale=None if scale is None else scale[pages].to(self.device))
            bounds[pages] = own
