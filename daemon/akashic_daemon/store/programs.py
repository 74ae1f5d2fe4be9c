"""What a session's cache is asked to do, and why each of its turns reused what it did.

A session has a policy, the message from which on it is asked, and operations, selectors resolved. All of it goes with the
session. A fork takes over what took effect in the history it shares; explanations stay where their turns ran.
"""

from __future__ import annotations

import difflib
import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from akashic_daemon.errors import NotFound
from akashic_daemon.program.message_ops import MessageOp
from akashic_daemon.program.wire import from_stored, to_stored
from akashic_daemon.store.database import Database

KEPT_EXPLANATIONS = 200
"""The newest turns of a session whose explanations are kept."""


@dataclass(frozen=True, slots=True)
class SessionProgram:
    """A session's policy as `NAME:parameter=value,…` (None: no policy of its own), and its operations.

    edit_reuse: what an edited history of it becomes, `exact` or `drop`; None leaves that to the settings.
    """

    policy: str | None = None
    policy_since: int = 0
    ops: tuple[MessageOp, ...] = ()
    edit_reuse: Literal["exact", "drop"] | None = None


class ProgramStore:
    """Programs and explanations of all sessions. Use it on the database's thread; NotFound for an unknown session."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, session: str) -> SessionProgram:
        """Return a session's program; one that was never set is empty."""
        with self._database.reading() as c:
            row = c.execute(
                "SELECT policy, policy_since, ops, edit_reuse FROM programs WHERE session_id = ?", (row_id(c, session),)
            ).fetchone()
        return (
            SessionProgram()
            if row is None
            else SessionProgram(row[0], row[1], tuple(from_stored(json.loads(row[2]))), row[3])
        )

    def set_policy(self, session: str, spec: str | None, since: int) -> None:
        """Set the policy, asked from message `since` on; None takes it away."""
        with self._database.transaction() as c:
            c.execute(
                "INSERT INTO programs (session_id, policy, policy_since) VALUES (?, ?, ?) ON CONFLICT (session_id) "
                "DO UPDATE SET policy = excluded.policy, policy_since = excluded.policy_since",
                (row_id(c, session), spec, since),
            )

    def set_edit_reuse(self, session: str, value: Literal["exact", "drop"] | None) -> None:
        """Say what an edited history of the session becomes; None leaves it to the settings."""
        with self._database.transaction() as c:
            c.execute(
                "INSERT INTO programs (session_id, edit_reuse) VALUES (?, ?) ON CONFLICT (session_id) "
                "DO UPDATE SET edit_reuse = excluded.edit_reuse",
                (row_id(c, session), value),
            )

    def set_ops(self, session: str, ops: Sequence[MessageOp]) -> None:
        """Set the operations."""
        with self._database.transaction() as c:
            c.execute(
                "INSERT INTO programs (session_id, ops) VALUES (?, ?) ON CONFLICT (session_id) "
                "DO UPDATE SET ops = excluded.ops",
                (row_id(c, session), _column(ops)),
            )

    def add_explanation(self, session: str, text: str) -> int:
        """Keep the explanation (JSON text) of a session's next turn; return its number. The oldest go."""
        with self._database.transaction() as c:
            session_id = row_id(c, session)
            newest = c.execute("SELECT max(turn) FROM explanations WHERE session_id = ?", (session_id,)).fetchone()[0]
            turn = (newest or 0) + 1
            c.execute("INSERT INTO explanations VALUES (?, ?, ?)", (session_id, turn, text))
            c.execute(
                "DELETE FROM explanations WHERE session_id = ? AND turn <= ?", (session_id, turn - KEPT_EXPLANATIONS)
            )
            return turn

    def explanation(self, session: str, turn: int | None = None) -> tuple[int, str]:
        """Return a turn's number and its explanation, of the newest when None. Raises NotFound naming those kept."""
        with self._database.reading() as c:
            session_id = row_id(c, session)
            first, last = c.execute(
                "SELECT min(turn), max(turn) FROM explanations WHERE session_id = ?", (session_id,)
            ).fetchone()
            if last is None:
                raise NotFound(
                    f"session {session!r} has no explained turn", hint="a turn that ran to its answer has one"
                )
            row = c.execute(
                "SELECT turn, json FROM explanations WHERE session_id = ? AND turn = ?",
                (session_id, last if turn is None else turn),
            ).fetchone()
        if row is None:
            raise NotFound(
                f"session {session!r} keeps no explanation of turn {turn}", hint=f"turns {first} to {last} are kept"
            )
        return int(row[0]), str(row[1])


def copy(c: sqlite3.Connection, parent: int, child: int, message_count: int) -> None:
    """Give a new session what its parent's program has done within the first `message_count` messages."""
    row = c.execute(
        "SELECT policy, policy_since, ops, edit_reuse FROM programs WHERE session_id = ?", (parent,)
    ).fetchone()
    if row is not None:
        ops = [op for op in from_stored(json.loads(row[2])) if op.at is None or op.at <= message_count]
        values = (child, row[0], min(row[1], message_count), _column(ops), row[3])
        c.execute("INSERT INTO programs VALUES (?, ?, ?, ?, ?)", values)


def row_id(c: sqlite3.Connection, session: str) -> int:
    """Return a session's row id. Raises NotFound."""
    row = c.execute("SELECT id FROM sessions WHERE name = ?", (session,)).fetchone()
    if row is None:
        raise no_session(c, session)
    return int(row[0])


def no_session(c: sqlite3.Connection, session: str) -> NotFound:
    """Return the error that names the nearest session."""
    names = [r[0] for r in c.execute("SELECT name FROM sessions")]
    near = difflib.get_close_matches(session, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "`akashic session list` shows all"
    return NotFound(f"there is no session {session!r}", hint=hint)


def _column(ops: Sequence[MessageOp]) -> str:
    return json.dumps([to_stored(op) for op in ops], separators=(",", ":"))
