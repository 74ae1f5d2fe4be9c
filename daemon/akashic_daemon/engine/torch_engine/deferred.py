"""Pieces of prompts whose cells are taken, and which are computed later, all in one step: segment-batch attention.

Operations change views only, so a sequence can be dropped from, moved and shared while its newest tokens have no KV yet. Each
piece remembers what it sees. Its pages stay held until it is computed, whoever lets go of them, for no other may write there.
"""

from __future__ import annotations

from collections.abc import Callable

from akashic_daemon.engine.base import BatchItem
from akashic_daemon.engine.torch_engine.kv import Growth, PagedCells, PagedKv
from akashic_daemon.errors import EngineError


class Deferred:
    """What waits over one pool. `settle` is called when cells must be there: before pages are packed or read."""

    def __init__(self, kv: PagedKv, settle: Callable[[], None]) -> None:
        self._kv = kv
        self._waiting: list[tuple[BatchItem, Growth]] = []
        self._held: list[PagedCells] = []
        self._settle = settle
        self._failed: EngineError | None = None
        kv.before_packing = self.settle_any

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, item: BatchItem) -> None:
        """Take cells for an item and let its sequence see them."""
        growth = self._kv.grow([item.sequence], [len(item.tokens)], [item.start])
        self._kv.commit(growth)
        self._waiting.append((item, growth))
        self._held.append(self._kv.keep(growth.seen[0]))

    def settle_any(self) -> None:
        """Have it computed, if anything waits; when that fails, the next step fails too, as whoever deferred must know."""
        if self._waiting:
            try:
                self._settle()
            except EngineError as error:
                self._failed = error
                raise

    def check(self) -> None:
        """Raise what `settle_any` failed by, once."""
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def waiting(self) -> list[tuple[BatchItem, Growth]]:
        """Return what waits, in order."""
        return list(self._waiting)

    def clear(self) -> None:
        """Forget it, computed or not, and that it failed: whoever deferred knows."""
        self._failed = None
        self._waiting.clear()
        self._held.clear()
