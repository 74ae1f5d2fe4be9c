"""What requests to come are recognised by besides messages: where a session's requests ended, where its operations stand.

Chain digests, and operations as they were sent (a replacement's text among them); all of it goes with the session.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from akashic_daemon.sessions.traces import Known
from akashic_daemon.store import traces
from akashic_daemon.store.database import Database
from akashic_daemon.store.programs import row_id
from akashic_daemon.types import ChainDigest

logger = logging.getLogger("akashic.store")
Places = dict[str, list[int]]
"""An operation as JSON, without its place -> how many messages stood before it each time it took effect."""
KEPT_ENDS = 4096
"""The newest ends of requests, of all sessions together, that are kept."""


@dataclass(slots=True)
class Unwritten:
    """What is to be kept of a session's newest requests; places: None when they haven't changed."""

    ends: list[ChainDigest] = field(default_factory=list)
    places: Places | None = None
    traces: dict[str, tuple[Known, Mapping[str, str]]] = field(default_factory=dict)


class BookStore:
    """Use it on the database's thread."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def write(self, session: str, unwritten: Unwritten) -> None:
        """Keep it in one transaction. Raises NotFound when there is no such session."""
        with self._database.transaction() as c:
            session_id = row_id(c, session)
            _add_ends(c, session_id, unwritten.ends)
            if unwritten.places is not None:
                c.execute(
                    "INSERT INTO places (session_id, json) VALUES (?, ?) "
                    "ON CONFLICT (session_id) DO UPDATE SET json = excluded.json",
                    (session_id, _to_column(unwritten.places)),
                )
            for known, parts in unwritten.traces.values():
                traces.put(c, session_id, known, parts)

    def places(self) -> list[tuple[str, Places]]:
        """Return the places of every session that has some; of those that were changed on disk only the log tells."""
        with self._database.reading() as c:
            rows = c.execute("SELECT s.name, p.json FROM places p JOIN sessions s ON s.id = p.session_id").fetchall()
        out = []
        for name, column in rows:
            found = read_places(column)
            if found is None:
                logger.warning("where operations of session %s took effect was changed on disk, and isn't known", name)
            else:
                out.append((name, found))
        return out

    def ends(self) -> list[tuple[ChainDigest, str]]:
        """Return where requests ended and of which session, oldest first."""
        with self._database.reading() as c:
            rows = c.execute(
                "SELECT e.chain, s.name FROM request_ends e JOIN sessions s ON s.id = e.session_id ORDER BY e.id"
            ).fetchall()
        return [(ChainDigest(chain), name) for chain, name in rows]


def read_places(column: object) -> Places | None:
    """Return what a column of places holds, None when it was changed on disk."""
    checksum, _, text = column.partition(" ") if isinstance(column, str) else ("", "", "")
    if checksum != _checksum(text):
        return None
    places: Places = json.loads(text)
    return places


def _to_column(places: Places) -> str:
    text = json.dumps(places, separators=(",", ":"))
    return f"{_checksum(text)} {text}"


def _checksum(text: str) -> str:
    return "places1:" + hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _add_ends(c: sqlite3.Connection, session_id: int, ends: Sequence[ChainDigest]) -> None:
    """Note that requests ended there; an end belongs to the session whose request was the last to end there."""
    for chain in ends:
        c.execute("DELETE FROM request_ends WHERE chain = ?", (chain,))
        c.execute("INSERT INTO request_ends (chain, session_id) VALUES (?, ?)", (chain, session_id))
    if ends:
        c.execute(
            "DELETE FROM request_ends WHERE id <= (SELECT id FROM request_ends ORDER BY id DESC LIMIT 1 OFFSET ?)",
            (KEPT_ENDS,),
        )
