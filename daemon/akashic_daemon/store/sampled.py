"""The exact token ids that an assistant message was sampled as, by what stands before it and its text.

Tokenizing the text again may give other ids, and then nothing computed for it could be reused. The ids are the text in
another form, so they go when the message goes.
"""

from __future__ import annotations

import hashlib
import sqlite3
import sys
from array import array
from collections.abc import Sequence

from akashic_daemon.types import ChainDigest


def text_digest(text: str) -> str:
    """Return the tagged digest of a message's text."""
    return "text1:" + hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def remember(c: sqlite3.Connection, parent: ChainDigest | None, text: str, token_ids: Sequence[int]) -> None:
    """Keep the ids; none at all means that the text wasn't sampled as it stands, and forgets what was kept."""
    key = (parent or "", text_digest(text))
    if token_ids:
        c.execute(
            "INSERT OR REPLACE INTO sampled (parent_chain, text_digest, token_ids, sequence) VALUES (?, ?, ?, "
            "(SELECT coalesce(max(sequence), 0) + 1 FROM sampled WHERE text_digest = ?))",
            (*key, _to_blob(token_ids), key[1]),
        )
    else:
        c.execute("DELETE FROM sampled WHERE parent_chain = ? AND text_digest = ?", key)


def recall(c: sqlite3.Connection, parent: ChainDigest | None, text: str) -> list[int] | None:
    """Return the ids, None when the text wasn't sampled here or they are damaged."""
    row = c.execute(
        "SELECT token_ids FROM sampled WHERE parent_chain = ? AND text_digest = ?", (parent or "", text_digest(text))
    ).fetchone()
    return None if row is None else from_blob(row[0])


def recall_text(c: sqlite3.Connection, text: str) -> list[int] | None:
    """Return the ids that a text was sampled as last, after whatever history; None when it wasn't sampled here."""
    row = c.execute(
        "SELECT token_ids FROM sampled WHERE text_digest = ? ORDER BY sequence DESC LIMIT 1", (text_digest(text),)
    ).fetchone()
    return None if row is None else from_blob(row[0])


def forget(c: sqlite3.Connection, parent: ChainDigest | None, text: str) -> None:
    """Delete the ids of one message."""
    remember(c, parent, text, ())


def forget_after(c: sqlite3.Connection, parent: ChainDigest) -> None:
    """Delete the ids of everything that was sampled right after `parent`."""
    c.execute("DELETE FROM sampled WHERE parent_chain = ?", (parent,))


def _to_blob(token_ids: Sequence[int]) -> bytes:
    ids = array("i", token_ids)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tobytes()


def from_blob(blob: object) -> list[int] | None:
    """Read little-endian int32s; None when these are no token ids, which only damage makes them."""
    if not isinstance(blob, bytes) or not blob or len(blob) % 4:
        return None
    ids = array("i", blob)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tolist() if min(ids) >= 0 else None
