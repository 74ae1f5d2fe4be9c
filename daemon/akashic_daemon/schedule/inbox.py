"""What other threads ask of the engine thread, between two steps. Closed with it: who comes too late is told, not forgotten."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from akashic_daemon.errors import Cancelled

Work = Callable[[], None]


class Inbox:
    """A queue of functions; None asks the thread to stop. Any thread may put, one reads."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._closing = threading.Lock()
        self._closed = False
        self._looked_s = time.monotonic()
        self._is_waiting = False

    def put(self, work: Work | None) -> None:
        """Add something that nobody waits for."""
        self._queue.put(work)

    def hand_over(self, work: Work) -> None:
        """Add something that must come to an end: it runs here when the reader has gone, to say so by `check_open`."""
        with self._closing:
            if not self._closed:
                self._queue.put(work)
                return
        work()

    def check_open(self) -> None:
        """Raise Cancelled when the reader has gone."""
        if self._closed:
            raise stopping()

    def get(self, timeout_s: float | None = None) -> Work | None:
        """Return the next, waiting at most so long (None: as long as it takes). Raises queue.Empty."""
        self._is_waiting = True
        try:
            return self._queue.get(timeout=timeout_s)
        finally:
            self._looked_s = time.monotonic()
            self._is_waiting = False

    def get_nowait(self) -> Work | None:
        """Return the next. Raises queue.Empty."""
        self._looked_s = time.monotonic()
        return self._queue.get_nowait()

    def away_s(self) -> float:
        """Return for how long the reader has not looked; 0 while it waits for something. Any thread may ask."""
        return 0.0 if self._is_waiting else time.monotonic() - self._looked_s

    def close(self) -> None:
        """Read no more: what is left runs now, and learns it."""
        with self._closing:
            self._closed = True
        while not self._queue.empty():
            work = self._queue.get()
            if work is not None:
                work()


def stopping() -> Cancelled:
    """Return what a request is told that comes too late."""
    return Cancelled("the daemon is stopping", hint="send the request again")
