"""Limits for many waits in a row by one timer: a timeout of its own for each piece of an answer costs as much as reading it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any


class Waits:
    """Waits of one task, one after the other. Close it when there are no more."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._ends_s = 0.0
        self._waiting: asyncio.Task[Any] | None = None
        self._is_over = False

    async def limited(self, awaitable: Awaitable[bytes], limit_s: float) -> bytes:
        """Await it. Raises TimeoutError after the limit; a cancellation from elsewhere stays one."""
        task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()
        self._ends_s = self._loop.time() + limit_s
        self._waiting = task
        if self._timer is None or self._timer.when() > self._ends_s:
            self._set(self._ends_s)
        try:
            return await awaitable
        except asyncio.CancelledError:
            if self._is_over and task.uncancel() <= before:
                raise TimeoutError from None
            raise
        finally:
            self._waiting = None

    def close(self) -> None:
        """Let go of the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _set(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(at_s, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._waiting is None:
            return  # the next wait sets it again
        if self._loop.time() < self._ends_s:
            self._set(self._ends_s)
            return
        self._is_over = True
        self._waiting.cancel()
