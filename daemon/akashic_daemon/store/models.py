"""Registered models: files, and places on other servers. The embedded one isn't here: it is found where its package is."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from akashic_daemon.errors import Conflict, NotFound
from akashic_daemon.store.database import Database


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A name for a file, or for a model of another server: `path` is a URL then, and `remote` says how it is reached."""

    name: str
    path: str
    size_bytes: int
    mtime_ns: int
    is_default: bool
    remote: str | None = None


class ModelRegistry:
    """Names for model files."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> list[ModelRow]:
        """Return all rows by name."""
        with self._database.reading() as c:
            rows = c.execute(
                "SELECT name, path, size_bytes, mtime_ns, is_default, remote FROM models ORDER BY name"
            ).fetchall()
        return [ModelRow(n, p, s, m, bool(d), r) for n, p, s, m, d, r in rows]

    def get(self, name: str) -> ModelRow:
        """Return one row. Raises NotFound that names the nearest one."""
        rows = self.all()
        for row in rows:
            if row.name == name:
                return row
        raise _unknown(name, [r.name for r in rows])

    def add(
        self, name: str, path: str, size_bytes: int, mtime_ns: int, default: bool, remote: str | None = None
    ) -> None:
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
                "INSERT INTO models VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT(name) DO UPDATE SET remote = excluded.remote, "
                "size_bytes = excluded.size_bytes, mtime_ns = excluded.mtime_ns, is_default = max(is_default, excluded.is_default)",
                (name, path, size_bytes, mtime_ns, int(default), remote),
            )

    def remove(self, name: str) -> ModelRow:
        """Forget a name and return what it stood for; the file stays. Raises NotFound."""
        row = self.get(name)
        with self._database.transaction() as c:
            c.execute("DELETE FROM models WHERE name = ?", (name,))
        return row


def _unknown(name: str, known: list[str]) -> NotFound:
    near = difflib.get_close_matches(name, known, n=1)
    return NotFound(
        f"there is no registered model {name!r}", hint=f"did you mean {near[0]!r}?" if near else "`akashic model list`"
    )
