"""Keeps traces over restarts: read in the background at the start, written after each request, off the answer's path.

What is written is at most one request behind: a kill in that moment costs the newest request's operations on edited
history, never an answer. Also tells by which parts two fingerprints differ.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from akashic_daemon.engine.base import ModelInfo
from akashic_daemon.engine.parts import difference, parts_of, template_digest
from akashic_daemon.errors import AkashicError
from akashic_daemon.sessions.book import SessionBook
from akashic_daemon.sessions.traces import Known, Traces
from akashic_daemon.store.thread import StoreThread
from akashic_daemon.store.traces import TraceStore

logger = logging.getLogger("akashic.traces")


class TraceKeeper:
    """The traces in memory, and their store. Lives on the event loop."""

    def __init__(self, store: TraceStore, thread: StoreThread, book: SessionBook) -> None:
        self.traces = Traces()
        self._store = store
        self._thread = thread
        self._book = book
        self._parts: dict[str, Mapping[str, str]] = {}
        self._loading: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin to read what an earlier run kept."""
        self._loading = asyncio.create_task(self._load())

    async def ready(self) -> None:
        """Wait until that is read; requests are planned after it."""
        if self._loading is not None and not self._loading.done():
            await asyncio.shield(self._loading)

    def write(self, known: Known, parts: Mapping[str, str]) -> None:
        """Let a trace that was remembered be kept for the next start."""
        assert known.session is not None
        self._parts[known.fingerprint] = parts
        self._book.keep_trace(known, parts)

    def parts(self, fingerprint: str) -> Mapping[str, str]:
        """Return what a fingerprint is made of, nothing when that isn't known."""
        return self._parts.get(fingerprint, {})

    def change_since(self, session: str | None, info: ModelInfo) -> tuple[Known, str] | None:
        """Return what a session computed last and what of the model has changed since; None when nothing has.

        A trace under the loaded fingerprint makes it none, whatever other model came between.
        """
        own = self.traces.of_session(session, info.fingerprint)
        if own is not None:
            return None if own.template == template_digest(info) else (own, "chat template changed")
        other = self.traces.newest_of(session)
        if other is None:
            return None
        return other, difference(self._parts.get(other.fingerprint, {"model": other.model}), parts_of(info))

    def take_over(self, old: str, new: str, *, first: int | None = None) -> None:
        """Give a session the traces of another, only what stands on the `first` messages unless None."""
        for known in self.traces.all_of(old):
            taken = known.first(len(known.messages) + 1 if first is None else first, new)
            if taken is not None:
                self.traces.remember(taken)
                self.write(taken, self._parts.get(known.fingerprint, {}))

    async def _load(self) -> None:
        try:
            await self._book.load()
            await self._load_parts()
            found = []
            for row, session in await self._thread.run(self._store.newest):
                known = await self._read(row, session)
                found += [] if known is None else [known]
            for known in reversed(found):
                self.traces.remember(known)
        except AkashicError as error:
            logger.warning("what sessions computed before this start isn't known: %s", error)

    async def _load_parts(self) -> None:
        try:
            self._parts.update(await self._thread.run(self._store.parts))
        except AkashicError as error:
            logger.warning("what changed of models since this start isn't known: %s", error)

    async def _read(self, row: int, session: str) -> Known | None:
        try:
            return await self._thread.run(lambda: self._store.get(row))
        except AkashicError as error:
            logger.warning("what session %s computed before this start isn't known: %s", session, error)
            return None
