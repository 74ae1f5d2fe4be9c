"""Stored responses of OpenAI's Responses API, which later requests continue by id.

A row holds what its request added and what was answered; the history before is that of the response it continues. A row
goes with the session that it ran in, or by itself. Checksummed when written and when read.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from dataclasses import dataclass
from typing import Any

from akashic_daemon.errors import NotFound, StoreError
from akashic_daemon.store.database import Database

_LONGEST_CHAIN = 10_000


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One response: the items that its request sent, and the response as it was answered."""

    id: str
    previous: str | None
    items: tuple[Any, ...]
    body: dict[str, Any]


class ResponseStore:
    """All stored responses of a database. Use it on the database's thread; NotFound for an unknown id."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, response: StoredResponse, session: str | None, at_s: float) -> None:
        """Keep a response, under the session that it ran in; nothing of one that was removed meanwhile."""
        items, body = _dump(list(response.items)), _dump(response.body)
        kept = _checksum(response.id, response.previous, items, body)
        with self._database.transaction() as c:
            row = c.execute("SELECT id FROM sessions WHERE name = ?", (session,)).fetchone()
            if session is not None and row is None:
                return
            c.execute(
                "INSERT INTO responses (id, previous, session_id, items, body, created_at_s, checksum) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (response.id, response.previous, None if row is None else row[0], items, body, at_s, kept),
            )

    def get(self, response_id: str) -> StoredResponse:
        """Return a response. Raises StoreError when it was changed on disk."""
        with self._database.reading() as c:
            return _read(c, response_id)

    def history(self, response_id: str) -> list[Any]:
        """Return every item that a request sees which continues a response, oldest first."""
        turns: list[list[Any]] = []
        at: str | None = response_id
        with self._database.reading() as c:
            while at is not None:
                if len(turns) >= _LONGEST_CHAIN:
                    raise StoreError(
                        f"reading the history of response {response_id}: it has over {_LONGEST_CHAIN:,} responses",
                        hint="send the history as input items",
                    )
                found = _read(c, at, asked=response_id)
                turns.append([*found.items, *found.body.get("output", [])])
                at = found.previous
        return [item for turn in reversed(turns) for item in turn]

    def remove(self, response_id: str) -> None:
        """Delete a response for good; what continues it can't be continued any more."""
        with self._database.transaction() as c:
            if c.execute("DELETE FROM responses WHERE id = ?", (response_id,)).rowcount == 0:
                raise _missing(response_id, response_id)
        self._database.shrink()


def _read(c: sqlite3.Connection, response_id: str, *, asked: str | None = None) -> StoredResponse:
    row = c.execute("SELECT previous, items, body, checksum FROM responses WHERE id = ?", (response_id,)).fetchone()
    if row is None:
        raise _missing(response_id, asked or response_id)
    previous, items, body, kept = row
    if not isinstance(items, str) or not isinstance(body, str) or _checksum(response_id, previous, items, body) != kept:
        raise StoreError(
            f"reading response {response_id}: it was changed on disk",
            hint="delete it, and send the history as input items",
        )
    return StoredResponse(response_id, previous, tuple(json.loads(items)), json.loads(body))


def _missing(response_id: str, asked: str) -> NotFound:
    shown = repr(response_id[:100])
    if response_id != asked:
        return NotFound(
            f"response {asked!r} continues {shown}, which is no longer stored",
            hint="send the history as input items",
            param="previous_response_id",
        )
    return NotFound(
        f"there is no stored response {shown}",
        hint="it was never stored (store: false), was deleted, or went with its session",
        param="previous_response_id",
    )


def _dump(value: Any) -> str:
    """Return JSON that SQLite stores as it is: half surrogate pairs stay escaped."""
    return json.dumps(value, separators=(",", ":"))


def _checksum(response_id: str, previous: object, items: str, body: str) -> str:
    head = f"{response_id!r} {previous!r} {len(items)} ".encode("utf-8", "surrogatepass")
    return "resp1:" + hashlib.blake2b(head + (items + body).encode(), digest_size=16).hexdigest()
