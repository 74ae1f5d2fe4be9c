"""A thread of low priority that does jobs by urgency."""

from __future__ import annotations

import itertools
import logging
import queue
import threading
from collections.abc import Callable
from enum import IntEnum

from akashic_daemon.errors import AkashicError
from akashic_daemon.tiers.niceness import lower_priority

logger = logging.getLogger("akashic.tiers")


class Priority(IntEnum):
    """What goes first."""

    CALL = 0
    FETCH = 1
    STORE = 2
    PREFETCH = 3
    WRITE = 4
    LAST = 5
    """When everything else is done."""


class JobThread:
    """Does jobs in the order of their priority, and of their coming. Its methods may be called from any thread."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.PriorityQueue[tuple[int, int, Callable[[], object] | None]] = queue.PriorityQueue()
        self._stores: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._numbers = itertools.count()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; what `_begin` does comes first."""
        self._thread.start()

    def submit(self, priority: Priority, work: Callable[[], object]) -> None:
        """Do `work` on the mover's thread when nothing more urgent waits."""
        self._jobs.put((priority, next(self._numbers), work))

    def submit_store(self, work: Callable[[], None]) -> None:
        """Take an exported block, in order; also while a fetch waits for the engine thread, which may wait for this.

        `work` may not touch what a job has open.
        """
        self._stores.put(work)
        self.submit(Priority.STORE, self._store_next)

    def _store_next(self) -> bool:
        try:
            work = self._stores.get_nowait()
        except queue.Empty:  # a fetch did it while it waited
            return False
        self._guarded(work)
        return True

    def call(
        self, work: Callable[[], object], timeout_s: float | None = None, *, priority: Priority = Priority.CALL
    ) -> object:
        """Do `work` on the mover's thread and return or raise what it does. Raises TimeoutError."""
        done: queue.SimpleQueue[tuple[object, BaseException | None]] = queue.SimpleQueue()

        def run() -> None:
            try:
                done.put((work(), None))
            except AkashicError as error:
                done.put((None, error))
            except Exception as error:  # a bug of ours: whoever waits must hear of it
                done.put((None, error))
                raise

        self.submit(priority, run)
        try:
            result, error = done.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError from None
        if error is not None:
            raise error
        return result

    def stop(self, timeout_s: float) -> bool:
        """Do what waits, then what `_end` does, and end the thread. False when that took too long."""
        self._jobs.put((Priority.LAST + 1, next(self._numbers), None))
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _begin(self) -> None:
        """Do what comes before all jobs, on the thread."""

    def _end(self) -> None:
        """Do what comes after the last job, on the thread."""

    def _run(self) -> None:
        lower_priority()
        self._guarded(self._begin)
        while True:
            _, _, work = self._jobs.get()
            if work is None:
                break
            self._guarded(work)
        self._end()

    def _serve_waiting(self) -> None:
        """In the middle of a longer job, do what a request or the engine waits for: reads, and blocks that were exported."""
        later = []
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                break
            if job[0] in (Priority.FETCH, Priority.STORE) and job[2] is not None:
                self._guarded(job[2])
            else:
                later.append(job)
        for job in later:
            self._jobs.put(job)

    def _guarded(self, work: Callable[[], object]) -> None:
        """Do a job; a bug of ours in it must not end the thread, or every later session would be cold.

        The border of the thread, hence the broad except.
        """
        try:
            work()
        except Exception:
            logger.exception("the tiers' thread met a bug")
