"""Where the tool calls of stored messages stand, by their ids.

A client sends a call back by its id with the same arguments, but not always in the same bytes; the message that was stored
first says in which they were sampled. Goes with its message.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable

from akashic_daemon.errors import StoreError
from akashic_daemon.trajectory.message import Message, ToolCall

_MOST_CANDIDATES = 8
"""Messages that are looked at for one id; some clients number their calls anew in each conversation."""


def remember(c: sqlite3.Connection, message_id: int, message: Message) -> None:
    """Keep where a message's calls stand."""
    if message.tool_calls:
        rows = [(call.id, message_id) for call in message.tool_calls if call.id]
        c.executemany("INSERT OR IGNORE INTO calls (call_id, message_id) VALUES (?, ?)", rows)


def recall(
    c: sqlite3.Connection, call_ids: Iterable[str], read: Callable[[str | bytes], Message]
) -> dict[str, tuple[ToolCall, ...]]:
    """Return the calls that had these ids, oldest first; `read` reads a stored message, and what is damaged is left out."""
    out: dict[str, tuple[ToolCall, ...]] = {}
    for call_id in call_ids:
        rows = c.execute(
            "SELECT m.json FROM calls JOIN messages m ON m.id = calls.message_id WHERE calls.call_id = ? "
            "ORDER BY calls.message_id LIMIT ?",
            (call_id, _MOST_CANDIDATES),
        )
        found: list[ToolCall] = []
        for (column,) in rows:
            try:
                message = read(column)
            except StoreError:
                continue
            found += [call for call in message.tool_calls if call.id == call_id and call not in found]
        out[call_id] = tuple(found)
    return out
