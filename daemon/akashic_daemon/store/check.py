"""Look for damage, and say what it is. Mends only what nothing can reach, and only when asked.

Both directions: what is named and isn't there, and what is there and nothing names.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from akashic_daemon.errors import StoreError
from akashic_daemon.store import book, sampled, traces, tree
from akashic_daemon.store.database import Database
from akashic_daemon.trajectory.message import chain

_UNREACHED = """WITH RECURSIVE reached(id) AS (
    SELECT head_id FROM sessions WHERE head_id IS NOT NULL UNION SELECT message_id FROM past_heads
    UNION SELECT m.parent_id FROM messages m JOIN reached ON m.id = reached.id WHERE m.parent_id IS NOT NULL)
    SELECT id FROM messages WHERE id NOT IN (SELECT id FROM reached)"""
_LEFT_SAMPLED = (
    "SELECT parent_chain FROM sampled WHERE parent_chain <> '' AND parent_chain NOT IN (SELECT chain FROM messages)"
)


class Kind(StrEnum):
    """What is wrong."""

    DAMAGED_FILE = "damaged_file"
    DANGLING = "dangling"
    UNREADABLE_MESSAGE = "unreadable_message"
    WRONG_DIGEST = "wrong_digest"
    WRONG_CHAIN = "wrong_chain"
    WRONG_CHECKSUM = "wrong_checksum"
    WRONG_COUNT = "wrong_count"
    ORPHAN_MESSAGE = "orphan_message"
    ORPHAN_SAMPLED = "orphan_sampled"
    DAMAGED_SAMPLED = "damaged_sampled"
    DAMAGED_TRACE = "damaged_trace"
    DAMAGED_PLACES = "damaged_places"
    WRONG_WINDOW = "wrong_window"
    TWO_DEFAULTS = "two_defaults"


MENDABLE = frozenset({Kind.ORPHAN_MESSAGE, Kind.ORPHAN_SAMPLED})


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: what kind, with what row, and what was seen. Holds no text of a message."""

    kind: Kind
    subject: str
    detail: str


def check(database: Database, *, fix: bool = False) -> list[Finding]:
    """Return everything that is wrong; with `fix`, delete the kinds of MENDABLE. Changes nothing otherwise."""
    with database.reading() as c, _any_bytes(c):
        damaged = list(_file(c))
        # A damaged file is asked no further: its answers would be guesses.
        findings = damaged or [*_dangling(c), *_messages(c), *_unreached(c), *_sampled(c), *_traces(c), *_others(c)]
    if fix and not damaged:
        with database.transaction() as c:
            c.execute(f"DELETE FROM messages WHERE id IN ({_UNREACHED})")
            c.execute(f"DELETE FROM sampled WHERE parent_chain IN ({_LEFT_SAMPLED})")
        database.shrink()
    return findings


@contextmanager
def _any_bytes(c: sqlite3.Connection) -> Iterator[None]:
    """Read text that isn't UTF-8 any more with marks in it, so that it is a finding and doesn't end the search."""
    factory = c.text_factory
    c.text_factory = lambda raw: raw.decode("utf-8", "replace")
    try:
        yield
    finally:
        c.text_factory = factory


def _file(c: sqlite3.Connection) -> Iterator[Finding]:
    for (line,) in c.execute("PRAGMA integrity_check"):
        if line != "ok":
            yield Finding(Kind.DAMAGED_FILE, "file", line)


def _dangling(c: sqlite3.Connection) -> Iterator[Finding]:
    for table, row_id, parent, _ in c.execute("PRAGMA foreign_key_check").fetchall():
        yield Finding(Kind.DANGLING, f"{table} {row_id}", f"it names a row of {parent} that isn't there")


def _messages(c: sqlite3.Connection) -> Iterator[Finding]:
    rows = c.execute(
        """SELECT m.id, m.depth, m.chain, m.digest, m.json, p.chain, coalesce(p.depth, -1),
        m.checksum = row_checksum(CAST(m.chain AS BLOB), m.depth, CAST(m.json AS BLOB), m.created_at_s)
        FROM messages m LEFT JOIN messages p ON p.id = m.parent_id ORDER BY m.id"""
    )
    for row_id, depth, own_chain, digest, column, parent_chain, parent_depth, is_whole in rows:
        subject = f"message {row_id}"
        if depth != parent_depth + 1:
            yield Finding(Kind.WRONG_COUNT, subject, f"it counts {depth} messages before it, not {parent_depth + 1}")
        if not is_whole:
            yield Finding(Kind.WRONG_CHECKSUM, subject, "its text, time or place isn't what was written")
        try:
            message = tree.from_column(column)
        except StoreError as error:
            yield Finding(Kind.UNREADABLE_MESSAGE, subject, error.message)
            continue
        if message.digest() != digest:
            yield Finding(Kind.WRONG_DIGEST, subject, f"its content is {message.digest()}, not {digest}")
        if chain(parent_chain, message) != own_chain:
            yield Finding(Kind.WRONG_CHAIN, subject, f"it stands at {chain(parent_chain, message)}, not {own_chain}")


def _unreached(c: sqlite3.Connection) -> Iterator[Finding]:
    for (row_id,) in c.execute(_UNREACHED):
        yield Finding(Kind.ORPHAN_MESSAGE, f"message {row_id}", "no session reaches it")


def _sampled(c: sqlite3.Connection) -> Iterator[Finding]:
    for (parent,) in c.execute(_LEFT_SAMPLED):
        yield Finding(Kind.ORPHAN_SAMPLED, f"sampled after {parent}", "no such message is stored")
    for parent, blob in c.execute("SELECT parent_chain, token_ids FROM sampled"):
        if sampled.from_blob(blob) is None:
            yield Finding(Kind.DAMAGED_SAMPLED, f"sampled after {parent or 'nothing'}", "these aren't token ids")


def _traces(c: sqlite3.Connection) -> Iterator[Finding]:
    rows = c.execute(
        "SELECT s.name, t.fingerprint, t.body, t.checksum FROM traces t LEFT JOIN sessions s ON s.id = t.session_id"
    )
    for name, fingerprint, body, kept in rows:
        if not isinstance(body, bytes) or traces.checksum(fingerprint, body) != kept:
            yield Finding(Kind.DAMAGED_TRACE, f"trace of session {name}", "it isn't what was written")
    rows = c.execute("SELECT s.name, p.json FROM places p LEFT JOIN sessions s ON s.id = p.session_id")
    for name, column in rows:
        if book.read_places(column) is None:
            yield Finding(Kind.DAMAGED_PLACES, f"places of session {name}", "they aren't what was written")


def _others(c: sqlite3.Connection) -> Iterator[Finding]:
    rows = c.execute(
        """SELECT s.name, s.window_start_message, coalesce(m.depth + 1, 0) FROM sessions s
        LEFT JOIN messages m ON m.id = s.head_id WHERE s.window_start_message NOT BETWEEN 0 AND coalesce(m.depth + 1, 0)"""
    )
    for name, start, count in rows:
        yield Finding(Kind.WRONG_WINDOW, f"session {name}", f"its window begins at message {start} of {count}")
    defaults = [r[0] for r in c.execute("SELECT name FROM models WHERE is_default ORDER BY name")]
    if len(defaults) > 1:
        yield Finding(Kind.TWO_DEFAULTS, "models", f"{' and '.join(defaults)} are all the default")
