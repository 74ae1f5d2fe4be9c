"""The message tree: rows named by chain digest, stored once however many sessions pass through.

Functions on an open connection; the caller owns the transaction. Invariants: a row's parent is stored, so if one chain
of a history is known then so are all before it; every leaf is the head or a past head of some session, so what
`prune` leaves is what some session still reaches. Both are found by `check`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from akashic_daemon.errors import AkashicError, StoreError
from akashic_daemon.store import calls, sampled
from akashic_daemon.store.checksum import row_checksum
from akashic_daemon.trajectory.message import Message, Role, chain
from akashic_daemon.types import ChainDigest, MessageDigest

PATH = """WITH RECURSIVE path(id) AS (
    VALUES(?) UNION ALL
    SELECT m.parent_id FROM messages m JOIN path ON m.id = path.id WHERE m.parent_id IS NOT NULL)"""
"""From a message to the root; its one parameter is the message's id."""

_STORED = """ SELECT m.id, m.depth, m.chain, m.digest, m.json, m.created_at_s, m.checksum
    FROM path JOIN messages m ON m.id = path.id ORDER BY m.depth"""
_SAMPLED = """ SELECT s.parent_chain, s.text_digest, s.token_ids FROM path JOIN messages m ON m.id = path.id
    LEFT JOIN messages p ON p.id = m.parent_id JOIN sampled s ON s.parent_chain = coalesce(p.chain, '')"""


@dataclass(frozen=True, slots=True)
class Node:
    """A place in the tree; the root is the place before the first message."""

    id: int | None
    chain: ChainDigest | None
    depth: int

    @property
    def message_count(self) -> int:
        """How many messages lead here."""
        return self.depth + 1


ROOT = Node(None, None, -1)


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message at its place. `token_ids` are what it was sampled as, None when it wasn't sampled here."""

    id: int
    index: int
    chain: ChainDigest
    digest: MessageDigest
    message: Message
    created_at_s: float
    token_ids: tuple[int, ...] | None = None


def to_column(message: Message) -> str | bytes:
    """Return the message for the `json` column: text, or bytes when it holds lone surrogates, which SQLite can't."""
    text = json.dumps(message.to_json(), ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def from_column(column: str | bytes) -> Message:
    """Read what `to_column` wrote. Raises StoreError when it isn't a message."""
    try:
        text = column if isinstance(column, str) else column.decode("utf-8", "surrogatepass")
        return Message.from_json(json.loads(text))
    except (ValueError, AttributeError, AkashicError) as error:
        raise StoreError("reading a stored message: it is damaged", hint="restore a backup of the store") from error


def find(c: sqlite3.Connection, chain_digest: ChainDigest) -> Node | None:
    """Return the place that a chain digest names."""
    row = c.execute("SELECT id, chain, depth FROM messages WHERE chain = ?", (chain_digest,)).fetchone()
    return None if row is None else Node(row[0], row[1], row[2])


def find_longest(c: sqlite3.Connection, chains: Sequence[ChainDigest]) -> Node:
    """Return the last place of a history that is stored, by bisection: what stands before a stored row is stored."""
    known, low, high = ROOT, 0, len(chains)
    while low < high:
        middle = (low + high) // 2
        node = find(c, chains[middle])
        if node is None:
            high = middle
        else:
            known, low = node, middle + 1
    return known


def grow(c: sqlite3.Connection, at: Node, messages: Sequence[Message], now_s: float) -> tuple[Node, int]:
    """Add messages after `at`; return where they end and how many rows are new."""
    new = 0
    for message in messages:
        after = chain(at.chain, message)
        node = find(c, after) if new == 0 else None  # nothing stands after a row that is new
        if node is None:
            column = to_column(message)
            cursor = c.execute(
                "INSERT INTO messages (parent_id, depth, chain, digest, json, created_at_s, checksum) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    at.id,
                    at.depth + 1,
                    after,
                    message.digest(),
                    column,
                    now_s,
                    _checksum(after, at.depth + 1, column, now_s),
                ),
            )
            assert cursor.lastrowid is not None
            calls.remember(c, cursor.lastrowid, message)
            node = Node(cursor.lastrowid, after, at.depth + 1)
            new += 1
        at = node
    return at, new


def read_path(c: sqlite3.Connection, head: Node) -> list[StoredMessage]:
    """Return the messages up to `head` in order. Raises StoreError when one isn't what its digest says."""
    if head.id is None:
        return []
    ids = {(r[0], r[1]): sampled.from_blob(r[2]) for r in c.execute(PATH + _SAMPLED, (head.id,))}
    out: list[StoredMessage] = []
    parent: ChainDigest | None = None
    for row in c.execute(PATH + _STORED, (head.id,)):
        stored = _verified(row, len(out), parent)
        if ids and stored.message.role is Role.ASSISTANT:
            tokens = ids.get((parent or "", sampled.text_digest(stored.message.said)))
            stored = replace(stored, token_ids=None if tokens is None else tuple(tokens))
        out.append(stored)
        parent = stored.chain
    if len(out) != head.message_count:
        raise _changed(head.depth)
    return out


def _verified(row: tuple[Any, ...], index: int, parent: ChainDigest | None) -> StoredMessage:
    message = from_column(row[4])
    if row[1] != index or message.digest() != row[3] or chain(parent, message) != row[2]:
        raise _changed(index)
    if row[6] != _checksum(row[2], index, row[4], row[5]):
        raise _changed(index)
    return StoredMessage(row[0], index, ChainDigest(row[2]), MessageDigest(row[3]), message, row[5])


def _checksum(own_chain: str, depth: int, column: str | bytes, created_at_s: float) -> str:
    return row_checksum(
        own_chain.encode(), depth, column if isinstance(column, bytes) else column.encode(), created_at_s
    )


def _changed(index: int) -> StoreError:
    return StoreError(
        f"reading a session: its message {index} was changed on disk", hint="restore a backup of the store"
    )


def node_on_path(c: sqlite3.Connection, head: Node, depth: int) -> Node:
    """Return the place at `depth` on the way to `head`; -1 is the root."""
    if depth < 0 or head.id is None:
        return ROOT
    row = c.execute(
        PATH + " SELECT m.id, m.chain, m.depth FROM path JOIN messages m ON m.id = path.id WHERE m.depth = ?",
        (head.id, depth),
    ).fetchone()
    if row is None:
        raise _changed(depth)
    return Node(row[0], row[1], row[2])


def path_ids(c: sqlite3.Connection, head: Node) -> list[int]:
    """Return the rows from `head` to the root."""
    return [] if head.id is None else [r[0] for r in c.execute(PATH + " SELECT id FROM path", (head.id,))]


def prune(c: sqlite3.Connection, leaf: int) -> set[int]:
    """Delete a message that no session holds and, upwards, all that nothing else stands on; return their ids."""
    removed: set[int] = set()
    at: int | None = leaf
    while at is not None:
        row = c.execute(
            """SELECT m.parent_id, m.chain, m.json, p.chain FROM messages m LEFT JOIN messages p ON p.id = m.parent_id
            WHERE m.id = ? AND NOT EXISTS (SELECT 1 FROM messages WHERE parent_id = m.id)
            AND NOT EXISTS (SELECT 1 FROM sessions WHERE head_id = m.id)
            AND NOT EXISTS (SELECT 1 FROM past_heads WHERE message_id = m.id)""",
            (at,),
        ).fetchone()
        if row is None:
            break
        parent_id, own_chain, column, parent_chain = row
        c.execute("DELETE FROM messages WHERE id = ?", (at,))
        sampled.forget_after(c, own_chain)
        _forget_sampled(c, column, parent_id, parent_chain)
        removed.add(at)
        at = parent_id
    return removed


def _forget_sampled(
    c: sqlite3.Connection, column: str | bytes, parent_id: int | None, parent_chain: ChainDigest | None
) -> None:
    """Delete the ids of a message that was deleted, unless one beside it says the same (with other thoughts or calls)."""
    text = _spoken(column)
    if text is None:
        return
    beside = c.execute("SELECT json FROM messages WHERE parent_id IS ?", (parent_id,))
    if not any(_spoken(row[0]) == text for row in beside):
        sampled.forget(c, parent_chain, text)


def _spoken(column: str | bytes) -> str | None:
    """Return the text of an assistant message; None for others, and for a damaged one, which must stay removable."""
    try:
        message = from_column(column)
    except StoreError:
        return None
    return message.said if message.role is Role.ASSISTANT else None
