"""The one thread that touches SQLite: the event loop hands it work and goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class StoreThread:
    """Runs functions one after the other, in the order they were given."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="akashic-store")

    async def run(self, function: Callable[[], T]) -> T:
        """Run `function` on the store thread and return or raise what it does."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)

    def close(self) -> None:
        """Wait for what was given and end the thread."""
        self._executor.shutdown(wait=True)
