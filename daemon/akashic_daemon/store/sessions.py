"""Sessions and their messages: a content-addressed tree in which branches share their beginnings.

A message row is named by its chain digest (itself and everything before it) and is stored once, however many sessions
pass through it. A session is a name and a head. `remove` deletes every message that no other head reaches.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import secrets
import sqlite3
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from akashic_daemon.errors import BadRequest, Conflict, NotFound, StoreError
from akashic_daemon.store.database import Database
from akashic_daemon.trajectory.message import Message, chain, chain_all
from akashic_daemon.types import ChainDigest, Clock, MessageDigest

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_PATH_TO_HEAD = """WITH RECURSIVE path(id) AS (
    SELECT head_id FROM sessions WHERE name = ?
    UNION ALL SELECT m.parent_id FROM messages m JOIN path ON m.id = path.id WHERE m.parent_id IS NOT NULL)"""


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session without its messages."""

    name: str
    title: str
    origin: str
    forked_from: str | None
    created_at_s: float
    updated_at_s: float
    message_count: int
    window_start_message: int | None


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message at its place."""

    id: int
    index: int
    chain: ChainDigest
    digest: MessageDigest
    message: Message
    created_at_s: float


class SessionStore:
    """All sessions of a database."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def count(self) -> int:
        """Return the number of sessions."""
        with self._database.reading() as c:
            return int(c.execute("SELECT count(*) FROM sessions").fetchone()[0])

    def all(self) -> list[SessionRow]:
        """Return all sessions, newest first."""
        return self._rows("ORDER BY s.updated_at_s DESC, s.id DESC", ())

    def get(self, name: str) -> SessionRow:
        """Return a session. Raises NotFound that names the nearest one."""
        rows = self._rows("WHERE s.name = ?", (name,))
        if rows:
            return rows[0]
        with self._database.reading() as c:
            names = [r[0] for r in c.execute("SELECT name FROM sessions")]
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "`akashic session list`"
        raise NotFound(f"there is no session {name!r}", hint=hint)

    def ensure(self, name: str, *, origin: str) -> SessionRow:
        """Return the session, making it when it is new."""
        rows = self._rows("WHERE s.name = ?", (name,))
        return rows[0] if rows else self.create(name, origin=origin)

    def create(self, name: str | None, *, origin: str, title: str = "") -> SessionRow:
        """Make an empty session; without a name it gets a free one. Raises Conflict, BadRequest."""
        if name is None:
            name = f"{origin.split(':', maxsplit=1)[0]}-{secrets.token_hex(4)}"
        if not _NAME.fullmatch(name):
            raise BadRequest(f"{name!r} can't name a session", hint="use letters, digits and - _ . : (at most 128)")
        now_s = self._clock.now_s()
        with self._database.transaction() as c:
            if c.execute("SELECT 1 FROM sessions WHERE name = ?", (name,)).fetchone():
                raise Conflict(f"a session {name!r} exists already", hint="choose another name")
            c.execute(
                "INSERT INTO sessions (name, title, origin, created_at_s, updated_at_s) VALUES (?, ?, ?, ?, ?)",
                (name, title, origin, now_s, now_s),
            )
        return self.get(name)

    def append(self, name: str, messages: Sequence[Message]) -> int:
        """Add messages at the end of a session, all or none; return how many rows are new."""
        self.get(name)
        with self._database.transaction() as c:
            head = c.execute(
                "SELECT m.id, m.chain, m.depth FROM sessions s LEFT JOIN messages m ON m.id = s.head_id WHERE s.name = ?",
                (name,),
            ).fetchone()
            return self._grow(c, name, head[0], head[1], -1 if head[2] is None else head[2], messages)

    def set_history(self, name: str, messages: Sequence[Message]) -> int:
        """Make `messages` the session's whole history; rows that exist are reused. Returns how many are new."""
        self.get(name)
        chains = chain_all(messages)
        with self._database.transaction() as c:
            for index in range(len(chains) - 1, -1, -1):
                row = c.execute("SELECT id FROM messages WHERE chain = ?", (chains[index],)).fetchone()
                if row is not None:
                    return self._grow(c, name, row[0], chains[index], index, messages[index + 1 :])
            return self._grow(c, name, None, None, -1, messages)

    def _grow(
        self,
        c: sqlite3.Connection,
        name: str,
        parent_id: int | None,
        parent: ChainDigest | None,
        depth: int,
        messages: Sequence[Message],
    ) -> int:
        now_s, new = self._clock.now_s(), 0
        for message in messages:
            parent = chain(parent, message)
            depth += 1
            row = c.execute("SELECT id FROM messages WHERE chain = ?", (parent,)).fetchone()
            if row is None:
                text = json.dumps(message.to_json(), ensure_ascii=False)
                row = (
                    c.execute(
                        "INSERT INTO messages (parent_id, depth, chain, digest, json, created_at_s) VALUES (?, ?, ?, ?, ?, ?)",
                        (parent_id, depth, parent, message.digest(), text, now_s),
                    ).lastrowid,
                )
                new += 1
            parent_id = row[0]
        title = next((m.content[:80].strip() for m in messages if m.role == "user" and m.content.strip()), "")
        c.execute(
            "UPDATE sessions SET head_id = ?, updated_at_s = ?, title = CASE title WHEN '' THEN ? ELSE title END WHERE name = ?",
            (parent_id, now_s, title, name),
        )
        return new

    def messages(self, name: str) -> list[StoredMessage]:
        """Return a session's messages in order. Raises StoreError when a row isn't what its digest says."""
        self.get(name)
        with self._database.reading() as c:
            rows = c.execute(
                _PATH_TO_HEAD
                + " SELECT m.id, m.depth, m.chain, m.digest, m.json, m.created_at_s FROM path JOIN messages m ON m.id = path.id ORDER BY m.depth",
                (name,),
            ).fetchall()
        return [self._stored(row, name) for row in rows]

    def _stored(self, row: tuple[int, int, str, str, str, float], name: str) -> StoredMessage:
        message = Message.from_json(json.loads(row[4]))
        if message.digest() != row[3]:
            raise StoreError(
                f"message {row[1]} of session {name!r} was changed on disk", hint="restore a backup of the store"
            )
        return StoredMessage(row[0], row[1], ChainDigest(row[2]), MessageDigest(row[3]), message, row[5])

    def fork(self, name: str, new_name: str | None, at_message: int | None) -> SessionRow:
        """Branch off after the first `at_message` messages (all when None). Raises BadRequest when there are fewer."""
        stored = self.messages(name)
        count = len(stored) if at_message is None else at_message
        if count > len(stored):
            raise BadRequest(
                f"session {name!r} has {len(stored)} messages, not {count}", hint="choose a smaller number"
            )
        parent = self.get(name)
        row = self.create(new_name, origin="fork", title=parent.title)
        with self._database.transaction() as c:
            c.execute(
                "UPDATE sessions SET head_id = ?, forked_from = ? WHERE name = ?",
                (stored[count - 1].id if count else None, name, row.name),
            )
        return self.get(row.name)

    def remove(self, name: str) -> tuple[int, int]:
        """Delete a session; return how many messages went and how many others still hold. Their text is overwritten."""
        stored = self.messages(name)
        with self._database.transaction() as c:
            c.execute("DELETE FROM sessions WHERE name = ?", (name,))
            removed = self._collect(c, [m.id for m in reversed(stored)])
        self._database.shrink()
        return removed, len(stored) - min(removed, len(stored))

    def _collect(self, c: sqlite3.Connection, newest_first: Sequence[int]) -> int:
        """Delete messages that no session reaches: these, and abandoned branches below them."""
        removed = 0
        for message_id in newest_first:
            below = [r[0] for r in c.execute("SELECT id FROM messages WHERE parent_id = ?", (message_id,))]
            removed += sum(self._collect(c, [b]) for b in below)
            held = c.execute(
                "SELECT 1 FROM sessions WHERE head_id = ? UNION ALL SELECT 1 FROM messages WHERE parent_id = ? LIMIT 1",
                (message_id, message_id),
            ).fetchone()
            if held is None:
                c.execute(
                    "DELETE FROM sampled WHERE parent_chain = (SELECT chain FROM messages WHERE id = ?)", (message_id,)
                )
                removed += c.execute("DELETE FROM messages WHERE id = ?", (message_id,)).rowcount
        return removed

    def set_window_start(self, name: str, message: int | None) -> None:
        """Remember where the session's prompt begins now."""
        with self._database.transaction() as c:
            c.execute("UPDATE sessions SET window_start_message = ? WHERE name = ?", (message, name))

    def find_by_chain(self, chains: Sequence[ChainDigest]) -> tuple[int, int | None, list[str]]:
        """Return the last index of `chains` that is stored (-1: none), its row, and the sessions whose head it is."""
        with self._database.reading() as c:
            for index in range(len(chains) - 1, -1, -1):
                row = c.execute("SELECT id FROM messages WHERE chain = ?", (chains[index],)).fetchone()
                if row is not None:
                    names = [r[0] for r in c.execute("SELECT name FROM sessions WHERE head_id = ? ORDER BY id", row)]
                    return index, row[0], names
        return -1, None, []

    def remember_sampled(self, parent: ChainDigest | None, text: str, token_ids: Sequence[int]) -> None:
        """Keep the ids that an assistant message was sampled as, standing after `parent`."""
        with self._database.transaction() as c:
            c.execute(
                "INSERT OR REPLACE INTO sampled VALUES (?, ?, ?)",
                (parent or "", _text_digest(text), array("i", token_ids).tobytes()),
            )

    def recall_sampled(self, parent: ChainDigest | None, text: str) -> list[int] | None:
        """Return those ids, None when the message wasn't sampled here."""
        with self._database.reading() as c:
            row = c.execute(
                "SELECT token_ids FROM sampled WHERE parent_chain = ? AND text_digest = ?",
                (parent or "", _text_digest(text)),
            ).fetchone()
        return None if row is None else array("i", row[0]).tolist()

    def _rows(self, clause: str, args: tuple[object, ...]) -> list[SessionRow]:
        with self._database.reading() as c:
            rows = c.execute(
                "SELECT s.name, s.title, s.origin, s.forked_from, s.created_at_s, s.updated_at_s, "
                "coalesce(m.depth + 1, 0), s.window_start_message FROM sessions s LEFT JOIN messages m ON m.id = s.head_id "
                + clause,
                args,
            ).fetchall()
        return [SessionRow(*row) for row in rows]


def _text_digest(text: str) -> str:
    return "text1:" + hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
