"""The one thread that touches SQLite: the event loop hands it work and goes on.

`run` is waited for. `later` is work that no answer waits for: of what waits for a session only the newest is done.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from akashic_daemon.errors import AkashicError, Cancelled, NotFound

logger = logging.getLogger("akashic.store")
T = TypeVar("T")


class StoreThread:
    """Runs functions one after the other, in the order they were given."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="akashic-store")
        self._closed = False
        self._later: OrderedDict[str, Callable[[], bool]] = OrderedDict()
        self._writing: asyncio.Task[None] | None = None
        self.problem: str | None = None
        """Why the newest of the work that nobody waits for could not be done."""

    async def run(self, function: Callable[[], T]) -> T:
        """Run `function` on the store thread and return or raise what it does; Cancelled once it is closed."""
        if self._closed:
            raise Cancelled("the daemon is stopping", hint="send the request again")
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)

    def later(self, session: str, function: Callable[[], bool]) -> None:
        """Keep something of a session when the thread has time; what waited for that isn't run any more.

        `function` tells if there was something to write.
        """
        self._later.pop(session, None)
        self._later[session] = function
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())

    async def settled(self) -> None:
        """Wait until nothing waits to be written."""
        while self._writing is not None and not self._writing.done():
            await asyncio.shield(self._writing)

    def close(self) -> None:
        """Wait for what was given and end the thread."""
        self._closed = True
        self._executor.shutdown(wait=True)

    async def _write(self) -> None:
        while self._later:
            session, function = self._later.popitem(last=False)
            try:
                if await self.run(function):
                    self.problem = None
            except NotFound:
                continue  # the session was removed meanwhile, and nothing of it is to be kept
            except AkashicError as error:
                if self.problem is None:
                    logger.warning("what session %s computed isn't kept for the next start: %s", session, error)
                self.problem = f"what is kept for the next start could not be written: {error.message}"
            except Exception as error:  # one session's must not keep what others wait for from the disk
                logger.exception("what session %s computed isn't kept for the next start, by a bug", session)
                self.problem = f"what is kept for the next start could not be written: {type(error).__name__}: {error}"
