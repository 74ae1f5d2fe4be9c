"""A disk that fails at its N-th call (calls to the extents' files and statements of the index are counted together), or is full."""

from __future__ import annotations

import resource
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from block_stores import CountingFiles

_CONFIGURING = ("PRAGMA", "ROLLBACK")


class FailingDisk(CountingFiles):
    """Fails call number `fail_at` (from 1), and all later ones where it stays broken. `kinds` counts what failed."""

    def __init__(self, fail_at: int | None, *, stays_broken: bool = False) -> None:
        super().__init__(fail_at, stays_broken=stays_broken)
        self.kinds: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """Calls up to now."""
        return sum(self.calls.values())

    def _count(self, name: str) -> None:
        try:
            super()._count(name)
        except OSError:
            self.kinds[name] += 1
            raise

    def statement(self, text: str) -> None:
        """Count a statement of the index, or fail it as SQLite does when the disk does."""
        word = text.split(maxsplit=1)[0].upper()
        if word in _CONFIGURING:
            return
        is_read = word == "SELECT"
        try:
            self._count(f"sqlite {word.lower()}")
        except OSError:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorname = "SQLITE_IOERR_READ" if is_read else "SQLITE_IOERR_WRITE"
            raise error from None

    @contextmanager
    def under_the_index(self) -> Iterator[None]:
        """Let the index's statements count as calls too, in databases that are opened meanwhile."""
        real_connect: Callable[..., sqlite3.Connection] = sqlite3.connect
        disk = self

        class Connection(sqlite3.Connection):
            """One that asks the disk before each statement."""

            def execute(self, text: str, *args: Any) -> sqlite3.Cursor:
                disk.statement(text)
                return super().execute(text, *args)

            def executemany(self, text: str, *args: Any) -> sqlite3.Cursor:
                disk.statement(text)
                return super().executemany(text, *args)

            def commit(self) -> None:
                disk.statement("COMMIT")
                super().commit()

        def connect(path: Path, **options: Any) -> sqlite3.Connection:
            return real_connect(path, factory=Connection, **options)

        with mock.patch("akashic_daemon.store.database.sqlite3.connect", connect):
            yield


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """Let the kernel refuse every write beyond a size, as a full disk does: the index's writes too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
