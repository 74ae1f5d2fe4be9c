"""Room on the device for the KV of two layers: one is computed with while the next one's pages come from RAM.

Pages keep their numbers, so views hold as they are. Each step reads every page that it sees, once a layer.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from akashic_kernels.kv_gather import kv_gather, kv_scatter

ROOMS = 2


class Stage:
    """Copies of pages of the parts of `home` (K, V, scales) [layers, pages, kv_heads, page_tokens, ...], which lie in RAM.

    lent: rooms for them that are somebody else's between steps.
    """

    def __init__(
        self, home: tuple[torch.Tensor, ...], device: torch.device, lent: list[tuple[torch.Tensor, ...]] | None = None
    ) -> None:
        self._home = home
        # Zeros: a masked slot counts nothing only while it holds a number.
        self._rooms = lent or [
            tuple(torch.zeros(part.shape[1:], dtype=part.dtype, device=device) for part in home)
            for _ in home[0][:ROOMS]
        ]
        self._lent = lent is not None
        self._device = device
        self._aside: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._seen = self._written = torch.empty(0, dtype=torch.int64, device=device)
        self._under_way = False
        """Whether pages may be coming that no layer has waited for."""
        self.read_pages = 0
        """Pages of a layer that were brought so far."""

    @property
    def nbytes(self) -> int:
        """Bytes on the device that are its own."""
        return 0 if self._lent else sum(part.nbytes for room in self._rooms for part in room)

    def begin(self, seen: list[int], written: list[int]) -> None:
        """Name the pages that a step sees, and those of them that it writes; the first layer's come at once."""
        self._seen, self._written = (torch.tensor(x, dtype=torch.int64, device=self._device) for x in (seen, written))
        self._bring(0)

    def layer(self, number: int) -> tuple[torch.Tensor, ...]:
        """Return the parts of a layer [pages, ...] once they are there; the next layer's are on their way then."""
        self.settle()
        if number + 1 < len(self._home[0]):
            self._bring(number + 1)
        return self._rooms[number % len(self._rooms)]

    def settle(self) -> None:
        """Let what comes next on the device wait for pages under way; a step that failed leaves some, and lent rooms are used."""
        if self._under_way and self._aside is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._aside)
        self._under_way = False

    def keep(self, number: int) -> None:
        """Write back what the step added to a layer."""
        for home, room in zip(self._home, self._rooms[number % len(self._rooms)], strict=True):
            kv_scatter(room.flatten(1), self._written, home[number].flatten(1), self._written)

    def _bring(self, number: int) -> None:
        if self._aside is not None:  # this room was used by the layer before last
            self._aside.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._aside) if self._aside is not None else nullcontext():
            for home, room in zip(self._home, self._rooms[number % len(self._rooms)], strict=True):
                kv_gather(home[number].flatten(1), self._seen, room.flatten(1), self._seen)
        self._under_way = True
        self.read_pages += len(self._seen)
