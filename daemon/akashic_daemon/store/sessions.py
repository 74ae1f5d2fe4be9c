"""Sessions: names for places in the message tree.

A session is a name, a head, and the heads it has left behind by rewinding or by an edited history; all of them stay
readable until the session is removed. `remove` deletes every message that no other session reaches, for good. Knows
nothing of tokens beyond the exact ids that answers were sampled as.
"""

from __future__ import annotations

import re
import secrets
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from akashic_daemon.errors import BadRequest, Conflict, NotFound
from akashic_daemon.store import calls, programs, sampled, tree
from akashic_daemon.store.database import Database
from akashic_daemon.store.tree import Node, StoredMessage
from akashic_daemon.trajectory.message import Message, Role, ToolCall, chain_all
from akashic_daemon.types import SESSION_NAME_PATTERN, ChainDigest, Clock

__all__ = ["SessionRow", "SessionStore", "StoredMessage", "check_name"]

_NAME = re.compile(SESSION_NAME_PATTERN)
_TITLE_CHARS = 80


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session without its messages. `window_start_message`: where its prompt's window begins now, if it has moved."""

    name: str
    title: str
    origin: str
    forked_from: str | None
    created_at_s: float
    updated_at_s: float
    message_count: int
    window_start_message: int | None
    head: ChainDigest | None = None


class SessionStore:
    """All sessions of a database. Use it on the database's thread; every method that writes is one transaction."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @property
    def database(self) -> Database:
        """Where the sessions are."""
        return self._database

    # -- sessions ----------------------------------------------------------------------------------------------

    def count(self) -> int:
        """Return the number of sessions."""
        with self._database.reading() as c:
            return int(c.execute("SELECT count(*) FROM sessions").fetchone()[0])

    def all(self) -> list[SessionRow]:
        """Return all sessions, newest first, in one query."""
        with self._database.reading() as c:
            return _rows(c, "ORDER BY s.updated_at_s DESC, s.id DESC", ())

    def get(self, name: str) -> SessionRow:
        """Return a session. Raises NotFound that names the nearest one."""
        with self._database.reading() as c:
            return _get(c, name)

    def head(self, name: str) -> ChainDigest | None:
        """Return the chain digest of a session's last message, None when it is empty. Raises NotFound."""
        return self.get(name).head

    def ensure(self, name: str, *, origin: str) -> SessionRow:
        """Return the session, making it when it is new."""
        check_name(name)
        with self._database.transaction() as c:
            rows = _named(c, name)
            return rows[0] if rows else self._create(c, name, origin=origin, title="")

    def create(self, name: str | None, *, origin: str, title: str = "") -> SessionRow:
        """Make an empty session; without a name it gets a free one. Raises Conflict, BadRequest."""
        with self._database.transaction() as c:
            return self._create(c, name, origin=origin, title=title)

    def rename(self, name: str, new_name: str) -> SessionRow:
        """Give a session another name; its forks name it by that. Raises NotFound, Conflict, BadRequest."""
        check_name(new_name)
        with self._database.transaction() as c:
            _get(c, name)
            if new_name != name:
                _refuse_taken(c, new_name)
                c.execute("UPDATE sessions SET name = ? WHERE name = ?", (new_name, name))
                c.execute("UPDATE sessions SET forked_from = ? WHERE forked_from = ?", (new_name, name))
            return _get(c, new_name)

    def touch(self, name: str) -> None:
        """Mark a session as used now. Raises NotFound."""
        with self._database.transaction() as c:
            _get(c, name)
            c.execute("UPDATE sessions SET updated_at_s = ? WHERE name = ?", (self._clock.now_s(), name))

    def fork(self, name: str, new_name: str | None, at_message: int | None) -> SessionRow:
        """Branch off after the first `at_message` messages (all when None). Raises BadRequest when there are fewer."""
        with self._database.transaction() as c:
            parent = _get(c, name)
            parent_id, head = _place(c, name)
            at = head if at_message is None else _first(c, name, head, at_message)
            row = self._create(c, new_name, origin="fork", title=parent.title)
            start = parent.window_start_message
            start = start if start is not None and start < at.message_count else None
            c.execute(
                "UPDATE sessions SET head_id = ?, forked_from = ?, window_start_message = ? WHERE name = ?",
                (at.id, name, start, row.name),
            )
            programs.copy(c, parent_id, programs.row_id(c, row.name), at.message_count)
            return _get(c, row.name)

    def remove(self, name: str) -> tuple[int, int]:
        """Delete a session; return how many messages went and how many of its history others still hold.

        What went is overwritten in the file and cut from the log before this returns; Conflict and StoreUnwritable say
        that the session is gone but its bytes aren't yet.
        """
        with self._database.transaction() as c:
            session_id, head = _place(c, name)
            history = tree.path_ids(c, head)
            leaves = [
                r[0] for r in c.execute("SELECT message_id FROM past_heads WHERE session_id = ?", (session_id,))
            ] + history[:1]
            c.execute("DELETE FROM sessions WHERE id = ?", (session_id,))
            removed: set[int] = set()
            for leaf in leaves:
                removed |= tree.prune(c, leaf)
        self._database.shrink()
        return len(removed), sum(i not in removed for i in history)

    def join_twin(self, name: str) -> str:
        """Let a session that was just filled go when an older one of its origin holds the same history; return the name to use.

        Nothing but its own row goes: the other session holds every message.
        """
        with self._database.transaction() as c:
            session_id, head = _place(c, name)
            twin = c.execute(
                "SELECT name FROM sessions WHERE head_id = ? AND id < ? "
                "AND origin = (SELECT origin FROM sessions WHERE id = ?) ORDER BY id LIMIT 1",
                (head.id, session_id, session_id),
            ).fetchone()
            if twin is None:
                return name
            c.execute("DELETE FROM sessions WHERE id = ?", (session_id,))
            return str(twin[0])

    def set_window_start(self, name: str, message: int | None) -> None:
        """Remember where the session's prompt begins now. Raises NotFound, BadRequest."""
        with self._database.transaction() as c:
            count = _get(c, name).message_count
            if message is not None and not 0 <= message <= count:
                raise BadRequest(
                    f"the window of session {name!r} can't begin at message {message}", hint=f"it has {count} messages"
                )
            c.execute("UPDATE sessions SET window_start_message = ? WHERE name = ?", (message, name))

    # -- messages ----------------------------------------------------------------------------------------------

    def append(self, name: str, messages: Sequence[Message]) -> int:
        """Add messages at the end of a session, all or none; return how many rows are new."""
        with self._database.transaction() as c:
            session_id, head = _place(c, name)
            end, new = tree.grow(c, head, messages, self._clock.now_s())
            self._move(c, session_id, head, end, keeps_old=False)
            _name_title(c, session_id, messages)
            return new

    def set_history(self, name: str, messages: Sequence[Message]) -> int:
        """Make `messages` the session's whole history; rows that exist are reused. Returns how many are new.

        A history that it leaves stays the session's own, out of sight, until the session is removed.
        """
        chains = chain_all(messages)
        with self._database.transaction() as c:
            session_id, head = _place(c, name)
            known = tree.find_longest(c, chains)
            end, new = tree.grow(c, known, messages[known.message_count :], self._clock.now_s())
            extends = head.id is None or (head.depth < len(chains) and chains[head.depth] == head.chain)
            self._move(c, session_id, head, end, keeps_old=not extends)
            _name_title(c, session_id, messages)
            return new

    def set_head(self, name: str, chain: ChainDigest | None) -> None:
        """Let a session end at a stored message, None for before the first. Raises NotFound.

        Any stored message will do: its chain digest can be known only by who knows all of its history.
        """
        with self._database.transaction() as c:
            session_id, head = _place(c, name)
            end = tree.ROOT if chain is None else tree.find(c, chain)
            if end is None:
                raise NotFound(
                    f"moving session {name!r}: no message {chain!r} is stored", hint="`akashic session show` lists them"
                )
            extends = head.id is None or tree.node_on_path(c, end, min(head.depth, end.depth)).id == head.id
            self._move(c, session_id, head, end, keeps_old=not extends)

    def rewind(self, name: str, message_count: int) -> None:
        """Let a session hold only its first messages; what followed stays its own. Raises NotFound, BadRequest."""
        with self._database.transaction() as c:
            session_id, head = _place(c, name)
            end = _first(c, name, head, message_count)
            self._move(c, session_id, head, end, keeps_old=end.id != head.id)

    def messages(self, name: str) -> list[StoredMessage]:
        """Return a session's messages in order. Raises NotFound, and StoreError when one isn't what its digest says."""
        with self._database.reading() as c:
            return tree.read_path(c, _place(c, name)[1])

    def find_by_chain(self, chains: Sequence[ChainDigest]) -> tuple[int, int | None, list[str]]:
        """Return the last index of a history that is stored (-1: none), its row, and the sessions whose head it is."""
        with self._database.reading() as c:
            node = tree.find_longest(c, chains)
            if node.id is None:
                return -1, None, []
            names = [r[0] for r in c.execute("SELECT name FROM sessions WHERE head_id = ? ORDER BY id", (node.id,))]
            return node.depth, node.id, names

    # -- sampled answers ---------------------------------------------------------------------------------------

    def remember_sampled(self, parent: ChainDigest | None, text: str, token_ids: Sequence[int]) -> None:
        """Keep the ids that an assistant message after `parent` was sampled as; none forgets what was kept."""
        with self._database.transaction() as c:
            sampled.remember(c, parent, text, token_ids)

    def recall_sampled(self, parent: ChainDigest | None, text: str) -> list[int] | None:
        """Return those ids, None when the message wasn't sampled here."""
        with self._database.reading() as c:
            return sampled.recall(c, parent, text)

    def recall_text(self, text: str) -> list[int] | None:
        """Return the ids that a text was sampled as last, whatever stood before it."""
        with self._database.reading() as c:
            return sampled.recall_text(c, text)

    def recall_calls(self, call_ids: Sequence[str]) -> dict[str, tuple[ToolCall, ...]]:
        """Return the stored calls that had these ids, oldest first."""
        with self._database.reading() as c:
            return calls.recall(c, call_ids, tree.from_column)

    def _create(self, c: sqlite3.Connection, name: str | None, *, origin: str, title: str) -> SessionRow:
        if name is None:
            name = _free_name(c, origin)
        check_name(name)
        _refuse_taken(c, name)
        now_s = self._clock.now_s()
        c.execute(
            "INSERT INTO sessions (name, title, origin, created_at_s, updated_at_s) VALUES (?, ?, ?, ?, ?)",
            (name, _printable(title), _printable(origin), now_s, now_s),
        )
        return _get(c, name)

    def _move(self, c: sqlite3.Connection, session_id: int, old: Node, new: Node, *, keeps_old: bool) -> None:
        """Set the head; a window that began behind the new end begins anew."""
        if keeps_old:
            c.execute("INSERT OR IGNORE INTO past_heads VALUES (?, ?)", (session_id, old.id))
        c.execute(
            "UPDATE sessions SET head_id = ?, updated_at_s = ?, window_start_message = "
            "CASE WHEN window_start_message < ? THEN window_start_message END WHERE id = ?",
            (new.id, self._clock.now_s(), new.message_count, session_id),
        )


def _rows(c: sqlite3.Connection, clause: str, args: tuple[object, ...]) -> list[SessionRow]:
    rows = c.execute(
        "SELECT s.name, s.title, s.origin, s.forked_from, s.created_at_s, s.updated_at_s, coalesce(m.depth + 1, 0), "
        "s.window_start_message, m.chain FROM sessions s LEFT JOIN messages m ON m.id = s.head_id " + clause,
        args,
    ).fetchall()
    return [SessionRow(*row) for row in rows]


def _named(c: sqlite3.Connection, name: str) -> list[SessionRow]:
    return _rows(c, "WHERE s.name = ?", (name,)) if _NAME.fullmatch(name) else []


def _get(c: sqlite3.Connection, name: str) -> SessionRow:
    rows = _named(c, name)
    if rows:
        return rows[0]
    raise programs.no_session(c, name)


def _place(c: sqlite3.Connection, name: str) -> tuple[int, Node]:
    """Return a session's row id and where it ends. Raises NotFound."""
    _get(c, name)
    row = c.execute(
        "SELECT s.id, m.id, m.chain, m.depth FROM sessions s LEFT JOIN messages m ON m.id = s.head_id WHERE s.name = ?",
        (name,),
    ).fetchone()
    return row[0], tree.ROOT if row[1] is None else Node(*row[1:])


def _first(c: sqlite3.Connection, name: str, head: Node, message_count: int) -> Node:
    if not 0 <= message_count <= head.message_count:
        raise BadRequest(
            f"session {name!r} has {head.message_count} messages, not {message_count}",
            hint=f"choose a number from 0 to {head.message_count}",
        )
    return tree.node_on_path(c, head, message_count - 1)


def check_name(name: str) -> None:
    """Raise BadRequest when it can't name a session."""
    if not _NAME.fullmatch(name):
        raise BadRequest(
            f"{name!r} can't name a session", hint="use letters, digits and - _ . : (at most 128, not . or .. alone)"
        )


def _refuse_taken(c: sqlite3.Connection, name: str) -> None:
    if _named(c, name):
        raise Conflict(f"a session {name!r} exists already", hint="choose another name")


def _free_name(c: sqlite3.Connection, origin: str) -> str:
    kind = re.sub(r"[^A-Za-z0-9_.-]+", "-", origin.split(":", maxsplit=1)[0])[:32] or "session"
    while True:
        name = f"{kind}-{secrets.token_hex(4)}"
        if not _named(c, name):
            return name


def _name_title(c: sqlite3.Connection, session_id: int, messages: Sequence[Message]) -> None:
    """Take the first question as the title of a session that has none."""
    title = next((m.content for m in messages if m.role is Role.USER and m.content.strip()), "")
    title = _printable(title.strip()[:_TITLE_CHARS].rstrip())
    c.execute("UPDATE sessions SET title = ? WHERE id = ? AND title = ''", (title, session_id))


def _printable(text: str) -> str:
    """Replace lone surrogates, which SQLite can't store as text."""
    return text.encode("utf-8", "replace").decode()
