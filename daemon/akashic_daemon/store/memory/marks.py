"""How far logs that are followed were read, one mark a file. Works inside the caller's transaction or read."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WatchMark:
    """A place in a file that is known by device and inode, whatever it is called now; path: what it was called first.

    line: how many lines stand before the offset. tail: a digest of what stands right before it, by which a file that was
    cut or written anew is known. settle_bytes: up to here the file was being read to its end as it stood, nothing held back;
    a reader that finds it does that again.
    """

    path: str
    device: int
    inode: int
    offset_bytes: int = 0
    line: int = 0
    tail: str = ""
    format: str = ""
    settle_bytes: int | None = None

    @property
    def key(self) -> tuple[int, int]:
        """What the file is known by."""
        return self.device, self.inode


def put(c: sqlite3.Connection, space: int, mark: WatchMark) -> None:
    """Keep a mark instead of the file's older one."""
    c.execute(
        "INSERT INTO watch_marks (namespace_id, device, inode, path, offset_bytes, line, tail, format, settle_bytes) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (namespace_id, device, inode) DO UPDATE SET "
        "path = excluded.path, offset_bytes = excluded.offset_bytes, line = excluded.line, tail = excluded.tail, "
        "format = excluded.format, settle_bytes = excluded.settle_bytes",
        (
            space,
            str(mark.device),
            str(mark.inode),
            mark.path,
            mark.offset_bytes,
            mark.line,
            mark.tail,
            mark.format,
            mark.settle_bytes,
        ),
    )


def drop(c: sqlite3.Connection, space: int, mark: WatchMark) -> None:
    """Forget a file that is gone."""
    c.execute(
        "DELETE FROM watch_marks WHERE namespace_id = ? AND device = ? AND inode = ?",
        (space, str(mark.device), str(mark.inode)),
    )


def of_namespace(c: sqlite3.Connection, space: int) -> list[WatchMark]:
    """Return the marks of logs that are followed into a namespace."""
    rows = c.execute(
        "SELECT path, device, inode, offset_bytes, line, tail, format, settle_bytes FROM watch_marks "
        "WHERE namespace_id = ? ORDER BY path, inode",
        (space,),
    )
    return [WatchMark(path, int(device), int(inode), *rest) for path, device, inode, *rest in rows]
