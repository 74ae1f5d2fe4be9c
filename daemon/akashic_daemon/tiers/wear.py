"""How much may still be written to the SSD tier today: the guard against wearing a disk out.

What is written is taken from the store's own counters, which are committed together with the records: no crash loses
count. A window of a day begins with the first write after the last one ended. Within a process time is monotonic; over
a restart it is the machine's clock, and one that went back lets the window begin anew with its count: so no clock makes
the count negative, or the budget unlimited, and none keeps the window shut for more than a day of running.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from akashic_daemon.errors import AkashicError
from akashic_daemon.store.blocks.store import BlockStore
from akashic_daemon.types import Clock

DAY_S = 86_400
_STARTED_S = "day_started_s"
_BASE_BYTES = "day_base_bytes"


class DailyWrites:
    """Counts payloads and what compaction rewrote. Use it on the store's thread; methods raise StoreError."""

    def __init__(self, store: BlockStore, budget_bytes: int, clock: Clock) -> None:
        self.budget_bytes = budget_bytes
        self._store = store
        self._clock = clock
        counters = store.counters()
        total = _total(counters)
        started_s = counters.get(_STARTED_S, 0)
        self._started_s = clock.monotonic_s() - max(0.0, clock.now_s() - started_s)
        # A base above the total was never written by us; it would make the count negative.
        self._base_bytes = min(counters.get(_BASE_BYTES, 0), total)
        if started_s > clock.now_s():
            with suppress(AkashicError):  # a disk that takes no note of it takes no payload either
                self._begin(self._base_bytes)

    def written_bytes(self) -> int:
        """Return what was written in the running window, 0 when it is over."""
        return 0 if self._is_over else _total(self._store.counters()) - self._base_bytes

    def left_bytes(self) -> int:
        """Return what may still be written; a window that is over ends here, and another begins."""
        total = _total(self._store.counters())
        if self._is_over:
            self._begin(total)
        return max(0, self.budget_bytes - (total - self._base_bytes))

    @property
    def _is_over(self) -> bool:
        return self._clock.monotonic_s() - self._started_s >= DAY_S

    def _begin(self, base_bytes: int) -> None:
        self._store.set_counters({_STARTED_S: int(self._clock.now_s()), _BASE_BYTES: base_bytes})
        self._started_s, self._base_bytes = self._clock.monotonic_s(), base_bytes


def _total(counters: Mapping[str, int]) -> int:
    return counters.get("written_bytes", 0) + counters.get("compacted_bytes", 0)
