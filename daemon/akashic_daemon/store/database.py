"""Opening the database: WAL, one writer, migrations, private files, and clear words when it can't be opened.

A database that doesn't open is never replaced or changed. `secure_delete` overwrites deleted text with zeros, and
`shrink` leaves none of it in the log. `synchronous=FULL`: a turn commits two or three times, off the token path, so an
fsync for each is cheap, and an answer that was shown survives a power cut.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from akashic_daemon.errors import AkashicError, Conflict, StoreError, StoreTooNew, StoreUnwritable
from akashic_daemon.store.checksum import ROW_CHECKSUM, row_checksum
from akashic_daemon.store.migrations import MIGRATIONS

BUSY_TIMEOUT_MS = 5000
"""So long a writer waits for another process's transaction before it gives up with Conflict."""
_VACUUM_PAGES = 500
"""So many pages of deleted text are cut off between two pauses."""
_MEANWHILE_S = 0.005

_TABLES = frozenset({"messages", "sessions"})
_REFUSED_BY_DISK = (
    "SQLITE_FULL",
    "SQLITE_READONLY",
    "SQLITE_CANTOPEN",
    "SQLITE_PERM",
    "SQLITE_IOERR_WRITE",
    "SQLITE_IOERR_FSYNC",
    "SQLITE_IOERR_DIR_FSYNC",
    "SQLITE_IOERR_TRUNCATE",
    "SQLITE_IOERR_SHM",
    "SQLITE_IOERR_DELETE",
)


class Database:
    """An open database. Use and close it on the thread that opened it; SQLite refuses others."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self.connection = connection

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run a block as one write transaction: all of it or nothing. SQLite's errors come out as ours."""
        with self._translated("writing"):
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield self.connection
                self.connection.commit()
            except BaseException:
                # A commit that fails leaves its transaction open; the next one must find none.
                self.connection.rollback()
                raise

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Run a block that reads. SQLite's errors come out as ours."""
        with self._translated("reading"):
            yield self.connection

    def examine(self, pragma: str, *, meanwhile: Callable[[], None]) -> list[tuple[Any, ...]]:
        """Return what a long PRAGMA says that reads much. SQLite's errors come out as ours.

        Another thread runs it on a connection of its own, and `meanwhile` is called again and again.
        """
        answers: list[list[tuple[Any, ...]] | sqlite3.Error] = []

        def run() -> None:
            try:
                with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
                    connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
                    answers.append(connection.execute(pragma).fetchall())
            except sqlite3.Error as error:
                answers.append(error)

        thread = threading.Thread(target=run, name="akashic-examine", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(_MEANWHILE_S)
            meanwhile()
        with self._translated("reading"):
            if not isinstance(answers[0], list):
                raise answers[0]
        return answers[0]

    def shrink(self, pause: Callable[[], None] = lambda: None) -> None:
        """Fold the write-ahead log into the file and cut both, so that deleted text is in neither.

        `pause` is called in the middle of it where much was deleted; others may read in it.

        Raises Conflict while another process reads the file: what was deleted is gone from every answer, but the log
        can't be cut yet.
        """
        with self._translated("wiping deleted text from"):
            free, before = self._free_pages(), -1
            while free and free != before:
                # executescript runs it to its end; execute stops after the first page, for it yields no rows.
                self.connection.executescript(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})")
                pause()
                free, before = self._free_pages(), free
            busy = self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        if busy:
            raise Conflict(
                f"wiping deleted text from {self.path}: the deletion is done, but another process reads the file, "
                "so the text is still in its log",
                hint="close the other program and restart the daemon; its stop wipes the log",
            )

    def _free_pages(self) -> int:
        return int(self.connection.execute("PRAGMA freelist_count").fetchone()[0])

    def size_bytes(self) -> int:
        """Return what its files take, the log included."""
        return sum(p.stat().st_size for p in self.path.parent.glob(self.path.name + "*") if p.is_file())

    def close(self) -> None:
        """Close it; a second call does nothing. The last to close folds the log into the file and removes it."""
        self.connection.close()

    @contextmanager
    def _translated(self, verb: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.ProgrammingError:
            raise  # a wrong thread or a closed database is a bug of ours, not the store's state
        except sqlite3.Error as error:
            raise as_store_error(error, f"{verb} {self.path}") from error


def as_store_error(error: sqlite3.Error, doing: str) -> AkashicError:
    """Turn an SQLite error into ours, naming what was being done."""
    name = getattr(error, "sqlite_errorname", "") or ""
    if name.startswith(_REFUSED_BY_DISK):
        return StoreUnwritable(
            f"{doing}: {error}",
            hint="free disk space or fix the folder's permissions; what was stored before is intact",
        )
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return Conflict(f"{doing}: another process is writing to it", hint="stop the other program and try again")
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return StoreError(f"{doing}: {error}", hint="it was left as it is; restore a backup or move it away")
    return StoreError(f"{doing}: {error}", hint="the database was left as it is")


def open_database(
    path: Path,
    *,
    busy_timeout_ms: int = BUSY_TIMEOUT_MS,
    migrations: Sequence[Sequence[str]] | None = None,
    tables: frozenset[str] = _TABLES,
) -> Database:
    """Open or make the database and bring it up to date, by our migrations unless others are given.

    An existing one is known as ours by having `tables`.

    Raises StoreTooNew for one of a newer program, StoreUnwritable when the disk refuses, StoreError when it is damaged
    or another program's, Conflict when another process keeps it locked.
    """
    doing = f"opening {path}"
    migrations = MIGRATIONS if migrations is None else migrations
    _make_private(path, doing)
    try:
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=True)
    except sqlite3.Error as error:
        raise as_store_error(error, doing) from error
    database = Database(path, connection)
    try:
        connection.execute(f"PRAGMA busy_timeout={busy_timeout_ms}")
        _refuse_foreign(database, tables, len(migrations))
        _configure(connection)
        for version in range(_version(connection), len(migrations)):
            _migrate(database, version, migrations[version])
    except sqlite3.Error as error:
        connection.close()
        raise as_store_error(error, doing) from error
    except BaseException:
        connection.close()
        raise
    return database


def _make_private(path: Path, doing: str) -> None:
    """Make the file if there is none, and take other users' rights from it and from a log that was left behind."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        for file in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))):
            if file.exists() and stat.S_IMODE(file.stat().st_mode) != 0o600:
                file.chmod(0o600)
    except OSError as error:
        raise StoreUnwritable(
            f"{doing}: {error.strerror}", hint="free space or fix permissions, or set AKASHIC_HOME to another folder"
        ) from error


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _refuse_foreign(database: Database, ours: frozenset[str], known_version: int) -> None:
    """Refuse, before anything is written, what this program didn't make or can't understand."""
    connection = database.connection
    have = _version(connection)
    tables = {r[0] for r in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if tables and not (have and ours <= tables):
        raise StoreError(
            f"opening {database.path}: it is a database of another program", hint="move it away, or set AKASHIC_HOME"
        )
    if have > known_version:
        raise StoreTooNew(
            f"opening {database.path}: it has version {have}, this program knows {known_version}",
            hint="upgrade akashic, or set AKASHIC_HOME to another folder",
        )


def _configure(connection: sqlite3.Connection) -> None:
    if connection.execute("PRAGMA page_count").fetchone()[0] == 0:
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute("PRAGMA secure_delete=ON")
    connection.create_function(ROW_CHECKSUM, 4, row_checksum, deterministic=True)
    connection.execute("PRAGMA temp_store=MEMORY")  # no text in temporary files outside the store


def _migrate(database: Database, version: int, statements: Sequence[str]) -> None:
    with database.transaction() as c:
        if _version(c) != version:
            return  # another process was faster
        for statement in statements:
            c.execute(statement)
        c.execute(f"PRAGMA user_version={version + 1}")
