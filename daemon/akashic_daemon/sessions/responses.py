"""Stored responses for the Responses API: continued by id, also after a restart, and deleted for good."""

from __future__ import annotations

import time
from typing import Any

from akashic_daemon.store.responses import ResponseStore, StoredResponse
from akashic_daemon.store.thread import StoreThread


class ResponseService:
    """Async face of the store of responses. NotFound for an unknown id."""

    def __init__(self, store: ResponseStore, thread: StoreThread) -> None:
        self._store = store
        self._thread = thread

    async def keep(self, body: dict[str, Any], *, items: list[Any], previous: str | None, session: str | None) -> None:
        """Store an answered response with the items that its request sent."""
        stored = StoredResponse(str(body["id"]), previous, tuple(items), body)
        await self._thread.run(lambda: self._store.put(stored, session, time.time()))

    async def get(self, response_id: str) -> StoredResponse:
        """Return a stored response."""
        return await self._thread.run(lambda: self._store.get(response_id))

    async def history(self, response_id: str) -> list[Any]:
        """Return every item that a request sees which continues a response, oldest first."""
        return await self._thread.run(lambda: self._store.history(response_id))

    async def remove(self, response_id: str) -> None:
        """Delete a response for good."""
        await self._thread.run(lambda: self._store.remove(response_id))
