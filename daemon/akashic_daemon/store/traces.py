"""Traces on disk: one row a session and fingerprint, written whole; and what each fingerprint was made of.

A row holds tokens, operations and what of its messages isn't the session's own text; the rest is read from the session.
It goes with its session. Checked when read: what was changed on disk is never a path to go on along.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import zlib
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from akashic_daemon.errors import AkashicError, StoreError
from akashic_daemon.program.active import active_cache
from akashic_daemon.program.align import Entry, Trace
from akashic_daemon.program.path import Path, op_from_json, op_to_json
from akashic_daemon.sessions.traces import MOST_FINGERPRINTS, MOST_TOKENS, Known
from akashic_daemon.store import tree
from akashic_daemon.store.database import Database
from akashic_daemon.trajectory.message import Message
from akashic_daemon.types import ChainDigest

_ODD = (
    AkashicError, zlib.error, ValueError, LookupError, TypeError, AttributeError, AssertionError, OverflowError
)  # fmt: skip
"""What reading a trace that isn't one may raise."""
Parts = Mapping[str, str]
"""What a fingerprint is made of, by name."""
_LENGTH_BYTES = 4
_MOST_BODY_BYTES = 256 << 20


class TraceStore:
    """All traces of a database. Use it on the database's thread."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def newest(self) -> list[tuple[int, str]]:
        """Return the rows and their sessions' names, newest first."""
        with self._database.reading() as c:
            rows = c.execute(
                "SELECT t.id, s.name FROM traces t JOIN sessions s ON s.id = t.session_id ORDER BY t.id DESC"
            ).fetchall()
        return [(int(row), str(name)) for row, name in rows]

    def get(self, row: int) -> Known | None:
        """Return a row's trace, None when it has gone meanwhile. Raises StoreError when it was changed on disk."""
        with self._database.reading() as c:
            found = c.execute(
                "SELECT s.name, f.model, t.fingerprint, t.body, t.checksum, m.id, m.chain, m.depth "
                "FROM traces t JOIN sessions s ON s.id = t.session_id "
                "JOIN fingerprints f ON f.fingerprint = t.fingerprint "
                "LEFT JOIN messages m ON m.id = t.head_id WHERE t.id = ?",
                (row,),
            ).fetchone()
            if found is None:
                return None
            name, model, fingerprint, body, kept_checksum, *head = found
            if not isinstance(body, bytes) or checksum(fingerprint, body) != kept_checksum:
                raise _damaged(name)
            node = tree.ROOT if head[0] is None else tree.Node(head[0], ChainDigest(head[1]), head[2])
            own = [m.message for m in tree.read_path(c, node)]
        try:
            return _from_body(name, model, fingerprint, body, own)
        except (AkashicError, zlib.error, ValueError, KeyError, TypeError, IndexError) as error:
            raise _damaged(name) from error

    def parts(self) -> dict[str, dict[str, str]]:
        """Return what each fingerprint is made of."""
        with self._database.reading() as c:
            rows = c.execute("SELECT fingerprint, parts FROM fingerprints").fetchall()
        try:
            return {str(fingerprint): dict(json.loads(parts)) for fingerprint, parts in rows}
        except (ValueError, TypeError) as error:
            raise StoreError(
                "reading what fingerprints are made of: it was changed on disk",
                hint="nothing else depends on it: only what changed of a model isn't said in words",
            ) from error


def put(c: sqlite3.Connection, session_id: int, known: Known, parts: Parts) -> None:
    """Keep a session's trace instead of the one before under its fingerprint."""
    head, others = _own_text(c, session_id, known.messages)
    body = _to_body(known, others)
    c.execute(
        "INSERT INTO fingerprints VALUES (?, ?, ?) ON CONFLICT (fingerprint) DO UPDATE "
        "SET model = excluded.model, parts = excluded.parts",
        (known.fingerprint, known.model, json.dumps(dict(parts), sort_keys=True)),
    )
    c.execute("DELETE FROM traces WHERE session_id = ? AND fingerprint = ?", (session_id, known.fingerprint))
    row = (session_id, known.fingerprint, head, len(known.trace.path.tokens), body, checksum(known.fingerprint, body))
    c.execute(
        "INSERT INTO traces (session_id, fingerprint, head_id, length_tokens, body, checksum) VALUES (?, ?, ?, ?, ?, ?)",
        row,
    )
    _hold_bounds(c, session_id)


def pack(known: Known) -> bytes:
    """Return a trace with all of its messages, for another home."""
    return _to_body(known, dict(enumerate(known.messages)))


def unpack(session: str, model: str, fingerprint: str, body: bytes) -> Known:
    """Read what `pack` wrote. Raises StoreError when it is something else."""
    try:
        known = _from_body(session, model, fingerprint, body, ())
        active_cache(known.trace.path)
        if sum(length for _, length in known.runs) != len(known.trace.path.tokens):
            raise ValueError("owners and tokens differ in number")
        if any(entry.owner < 0 for entry in known.trace.entries) or min(known.trace.path.tokens, default=0) < 0:
            raise ValueError("an owner or a token is less than 0")
        return known
    except _ODD as error:
        raise StoreError(
            f"reading what session {session!r} computed last: {error}",
            hint="its next request is recognised by its text alone",
        ) from error


def checksum(fingerprint: str, body: bytes) -> str:
    """Return the tagged checksum of a row."""
    return "trace1:" + hashlib.blake2b(fingerprint.encode() + b"\n" + body, digest_size=16).hexdigest()


def _damaged(session: str) -> StoreError:
    return StoreError(
        f"reading what session {session!r} computed last: it was changed on disk",
        hint="the session itself is stored apart; its next request is recognised by its text alone",
    )


def _hold_bounds(c: sqlite3.Connection, session_id: int) -> None:
    """Let the oldest go: of the session, and of all when they have too many tokens together."""
    c.execute(
        "DELETE FROM traces WHERE session_id = ? AND id NOT IN "
        "(SELECT id FROM traces WHERE session_id = ? ORDER BY id DESC LIMIT ?)",
        (session_id, session_id, MOST_FINGERPRINTS),
    )
    c.execute(
        "DELETE FROM traces WHERE id IN (SELECT id FROM (SELECT id, row_number() OVER newest AS number, "
        "sum(length_tokens) OVER newest AS total FROM traces WINDOW newest AS (ORDER BY id DESC)) "
        "WHERE total > ? AND number > 1)",
        (MOST_TOKENS,),
    )


def _own_text(
    c: sqlite3.Connection, session_id: int, messages: Sequence[Message]
) -> tuple[int | None, dict[int, Message]]:
    """Return the session's newest message up to where `messages` go, and those of them that the session says otherwise."""
    head = c.execute("SELECT head_id FROM sessions WHERE id = ?", (session_id,)).fetchone()[0]
    rows = c.execute(
        tree.PATH + " SELECT m.id, m.digest FROM path JOIN messages m ON m.id = path.id ORDER BY m.depth", (head,)
    ).fetchall()[: len(messages)]
    others = {i: m for i, m in enumerate(messages) if i >= len(rows) or rows[i][1] != m.digest()}
    return (rows[-1][0] if rows else None), others


def _to_body(known: Known, others: Mapping[int, Message]) -> bytes:
    trace = known.trace
    words: dict[str, Any] = {
        "ops": [op_to_json(op) for op in trace.path.ops],
        "entries": [[e.owner, *(n for r in e.ranges for n in r)] for e in trace.entries],
        "open_tail": trace.open_tail,
        "messages": len(known.messages),
        "others": [[index, message.to_json()] for index, message in others.items()],
        "tools": list(known.tools),
        "altered": sorted(known.altered),
        "runs": [n for run in known.runs for n in run],
        "template": known.template,
    }
    text = json.dumps(words, separators=(",", ":")).encode()
    tokens = np.frombuffer(trace.path.tokens, np.int32).astype("<i4")
    planes = tokens.view(np.uint8).reshape(-1, 4).T.tobytes()  # equal high bytes side by side: half the size
    return zlib.compress(len(text).to_bytes(_LENGTH_BYTES, "little") + text + planes)


def _from_body(session: str, model: str, fingerprint: str, body: bytes, own: Sequence[Message]) -> Known:
    data = _inflated(body)
    end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    words = json.loads(data[_LENGTH_BYTES:end])
    planes = np.frombuffer(data, np.uint8, offset=end).reshape(4, -1)
    tokens = array("i", np.ascontiguousarray(planes.T).view("<i4").astype(np.int32).tobytes())
    others = {int(index): Message.from_json(message) for index, message in words["others"]}
    messages = tuple(others[i] if i in others else own[i] for i in range(words["messages"]))
    path = Path(tokens, tuple(map(op_from_json, words["ops"])))
    entries = tuple(_entry(tokens, owner, flat) for owner, *flat in words["entries"])
    trace = Trace(path, entries, bool(words["open_tail"]))
    runs = tuple(_pairs(words["runs"]))
    return Known(
        session, model, fingerprint, trace, messages, tuple(words["tools"]), frozenset(words["altered"]), runs,
        words["template"],
    )  # fmt: skip


def _inflated(body: bytes) -> bytes:
    """Undo the packing, up to what a trace may need: what comes from another home may be anything."""
    state = zlib.decompressobj()
    data = state.decompress(body, _MOST_BODY_BYTES)
    if not state.eof:
        raise ValueError("it is cut off, or too large")
    return data


def _entry(tokens: array[int], owner: int, flat: Sequence[int]) -> Entry:
    ranges = _pairs(flat)
    text = array("i")
    for start, end in ranges:
        text.extend(tokens[start:end])
    return Entry(owner, tuple(ranges), text)


def _pairs(flat: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip(flat[::2], flat[1::2], strict=True))
