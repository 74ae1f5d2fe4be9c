"""Fake engines whose steps last: until somebody interrupts them, as a busy machine's do, or until a test gives leave."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any

from akashic_daemon.engine.base import BatchItem
from akashic_daemon.engine.fake import FakeEngine
from akashic_daemon.errors import EngineError

_LIMIT_S = 120.0


class LongStepsEngine(FakeEngine):
    """A step of at least so many tokens is long; `begun` counts these."""

    def __init__(self, tokens: int, **options: Any) -> None:
        super().__init__(**options)
        self._tokens = tokens
        self._interrupted = threading.Event()
        self.begun = threading.Semaphore(0)

    def interrupt(self) -> None:
        """See `Interruptible`."""
        self._interrupted.set()

    def decode(self, batch: Sequence[BatchItem]) -> None:
        """Compute, or wait for the interruption."""
        if sum(len(item.tokens) for item in batch) >= self._tokens:
            self.begun.release()
            logging.getLogger("akashic.test").info("a long step begins")
            assert self._interrupted.wait(_LIMIT_S), "nobody interrupted the step"
        if self._interrupted.is_set():
            self._interrupted.clear()
            raise EngineError("computing: it was aborted")
        super().decode(batch)


class GatedEngine(FakeEngine):
    """Each step waits for leave; it can't be interrupted. `begun` counts the steps that were begun."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.begun, self.may = threading.Semaphore(0), threading.Semaphore(0)
        self.is_open = False

    def open(self) -> None:
        """Give leave to every step, also to one that waits."""
        self.is_open = True
        self.may.release()

    def decode(self, batch: Sequence[BatchItem]) -> None:
        """Wait for leave, then compute."""
        self.begun.release()
        assert self.is_open or self.may.acquire(timeout=_LIMIT_S), "nobody gave leave to the step"
        super().decode(batch)
