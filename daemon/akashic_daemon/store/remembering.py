"""Which sessions go into long-term memory, where, and how much of each is there already. It goes with the session."""

from __future__ import annotations

from dataclasses import dataclass

from akashic_daemon.store.database import Database
from akashic_daemon.store.programs import row_id
from akashic_daemon.types import ChainDigest


@dataclass(frozen=True, slots=True)
class Remembering:
    """A session that goes into memory: of its messages the first `message_count` are there, up to this chain.

    Marks of older versions have no chain.
    """

    session: str
    namespace: str
    message_count: int
    chain: ChainDigest | None


class RememberingStore:
    """Use it on the database's thread; NotFound for an unknown session."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def begin(self, session: str, namespace: str) -> None:
        """Let a session go into memory from now on; in another namespace than before all of it counts as new."""
        with self._database.transaction() as c:
            c.execute(
                "INSERT INTO remembering (session_id, namespace) VALUES (?, ?) ON CONFLICT (session_id) DO UPDATE SET "
                "message_count = CASE WHEN namespace = excluded.namespace THEN message_count ELSE 0 END, "
                "chain = CASE WHEN namespace = excluded.namespace THEN chain ELSE '' END, "
                "namespace = excluded.namespace",
                (row_id(c, session), namespace),
            )

    def get(self, session: str) -> Remembering | None:
        """Return how a session goes into memory; None when it doesn't."""
        with self._database.reading() as c:
            row = c.execute(
                "SELECT namespace, message_count, chain FROM remembering WHERE session_id = ?", (row_id(c, session),)
            ).fetchone()
        return None if row is None else Remembering(session, str(row[0]), int(row[1]), row[2] or None)

    def advance(self, session: str, message_count: int, chain: ChainDigest) -> None:
        """Note that the session's first messages are in memory, those that lead to this chain."""
        with self._database.transaction() as c:
            c.execute(
                "UPDATE remembering SET message_count = ?, chain = ? WHERE session_id = ?",
                (message_count, chain, row_id(c, session)),
            )

    def finished(self, quiet_since_s: float) -> list[Remembering]:
        """Return the sessions that weren't used since a time and have others than are in memory, oldest first."""
        with self._database.reading() as c:
            rows = c.execute(
                "SELECT s.name, r.namespace, r.message_count, nullif(r.chain, '') FROM remembering r "
                "JOIN sessions s ON s.id = r.session_id JOIN messages m ON m.id = s.head_id WHERE s.updated_at_s <= ? "
                "AND CASE r.chain WHEN '' THEN m.depth + 1 > r.message_count ELSE m.chain <> r.chain END "
                "ORDER BY s.updated_at_s",
                (quiet_since_s,),
            ).fetchall()
        return [Remembering(*row) for row in rows]
