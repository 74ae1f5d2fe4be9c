"""Where blocks that were read from disk wait for the engine thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from akashic_daemon.tiers.block import Block
from akashic_daemon.tiers.staging import Buffer

Arrival = tuple[Block, Buffer | None, int]
"""A block that was read, its buffer and its size; no buffer for one that couldn't be read."""


class Sink:
    """Where fetched blocks arrive, in the order in which they were read. Closed, it takes no more."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._arrived: deque[Arrival] = deque()
        self._lock = threading.Lock()
        self.closed = False

    def offer(self, arrival: Arrival) -> bool:
        """Hand a block over, the buffer with it; False when nobody wants it any more."""
        with self._lock:
            if self.closed:
                return False
            self._arrived.append(arrival)
        self._wake()
        return True

    def take(self) -> Arrival | None:
        """Return the next block, None when none is there."""
        with self._lock:
            return self._arrived.popleft() if self._arrived else None

    def close(self) -> list[Arrival]:
        """Take no more; return what nobody took."""
        with self._lock:
            self.closed = True
            left = list(self._arrived)
            self._arrived.clear()
            return left
