"""The turns of one session: one after the other, each with the history that the one before it left.

A turn reads its session's history when it begins and writes it, with the answer, when it ends. What came between would be
lost, so another turn waits, and who changes the history otherwise is told to come again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from akashic_daemon.errors import Conflict


class TurnOrder:
    """Who may write the history of which session. Lives on the event loop."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._wanted: dict[str, int] = {}
        """How many hold or wait for each lock."""
        self._answered: set[str] = set()

    @asynccontextmanager
    async def turn(self, session: str) -> AsyncIterator[None]:
        """Wait until the session's other turns have ended, and keep later ones waiting."""
        async with self._held(session):
            self._answered.add(session)
            try:
                yield
            finally:
                self._answered.discard(session)

    @asynccontextmanager
    async def between(self, session: str, doing: str) -> AsyncIterator[None]:
        """Keep turns from beginning meanwhile. Raises Conflict when one runs; `doing` is what can't be done then."""
        if session in self._answered:
            raise Conflict(f"{doing} session {session!r}: it is being answered", hint="try again after the answer")
        async with self._held(session):
            yield

    @asynccontextmanager
    async def _held(self, session: str) -> AsyncIterator[None]:
        lock = self._locks.setdefault(session, asyncio.Lock())
        self._wanted[session] = self._wanted.get(session, 0) + 1
        try:
            async with lock:
                yield
        finally:
            self._wanted[session] -= 1
            if not self._wanted[session]:
                del self._wanted[session], self._locks[session]
