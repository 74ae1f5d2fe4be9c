"""Registered model files. The embedded model isn't here: it is found where its package is installed."""

from __future__ import annotations

from dataclasses import dataclass

from akashic_daemon.errors import Conflict, NotFound
from akashic_daemon.store.database import Database


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A name for a file."""

    name: str
    path: str
    size_bytes: int
    mtime_ns: int
    is_default: bool


class ModelRegistry:
    """Names for model files."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> list[ModelRow]:
        """Return all rows by name."""
        with self._database.reading() as c:
            rows = c.execute("SELECT name, path, size_bytes, mtime_ns, is_default FROM models ORDER BY name").fetchall()
        return [ModelRow(n, p, s, m, bool(d)) for n, p, s, m, d in rows]

    def add(self, name: str, path: str, size_bytes: int, mtime_ns: int, default: bool) -> None:
        """Register a file, or the same name and path again. Raises Conflict when the name stands for another file."""
        with self._database.transaction() as c:
            row = c.execute("SELECT path FROM models WHERE name = ?", (name,)).fetchone()
            if row is not None and row[0] != path:
                raise Conflict(
                    f"the model name {name!r} already stands for {row[0]}",
                    hint=f"`akashic model rm {name}` first, or use --name",
                )
            if default:
                c.execute("UPDATE models SET is_default = 0")
            c.execute(
                "INSERT INTO models VALUES (?, ?, ?, ?, ?) ON CONFLICT(name) DO UPDATE SET "
                "size_bytes = excluded.size_bytes, mtime_ns = excluded.mtime_ns, is_default = max(is_default, excluded.is_default)",
                (name, path, size_bytes, mtime_ns, int(default)),
            )

    def remove(self, name: str) -> None:
        """Forget a name. Raises NotFound."""
        with self._database.transaction() as c:
            if c.execute("DELETE FROM models WHERE name = ?", (name,)).rowcount == 0:
                raise NotFound(f"there is no model {name!r}", hint="`akashic model list`")
