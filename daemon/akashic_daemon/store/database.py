"""Opening the database: WAL, one writer, migrations, private files, and clear words when it can't be opened.

A database that doesn't open is never replaced. `secure_delete` overwrites deleted text with zeros.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from akashic_daemon.errors import AkashicError, Conflict, StoreError, StoreTooNew, StoreUnwritable
from akashic_daemon.store.migrations import MIGRATIONS

_BUSY_TIMEOUT_MS = 5000


class Database:
    """An open database. Use and close it on one thread."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self.connection = connection

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run a block as one write transaction: all of it or nothing. SQLite's errors come out as ours."""
        try:
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield self.connection
            except BaseException:
                self.connection.rollback()
                raise
            self.connection.commit()
        except sqlite3.Error as error:
            raise as_store_error(error, f"writing {self.path}") from error

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Run a block that reads. SQLite's errors come out as ours."""
        try:
            yield self.connection
        except sqlite3.Error as error:
            raise as_store_error(error, f"reading {self.path}") from error

    def shrink(self) -> None:
        """Fold the write-ahead log into the file and cut both, so that deleted text is in neither."""
        try:
            self.connection.execute("PRAGMA incremental_vacuum").fetchall()
            self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.Error as error:
            raise as_store_error(error, f"shrinking {self.path}") from error

    def close(self) -> None:
        """Close it; a second call does nothing."""
        self.connection.close()


def as_store_error(error: sqlite3.Error, doing: str) -> AkashicError:
    """Turn an SQLite error into ours, naming what was being done."""
    name = getattr(error, "sqlite_errorname", "") or ""
    if name.startswith(("SQLITE_FULL", "SQLITE_READONLY", "SQLITE_IOERR_WRITE", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        return StoreUnwritable(
            f"{doing}: {error}", hint="free disk space or fix the folder's permissions; nothing was lost"
        )
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return Conflict(f"{doing}: another process is writing to it", hint="stop the other program")
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return StoreError(f"{doing}: {error}", hint="it was left as it is; restore a backup or move it away")
    return StoreError(f"{doing}: {error}", hint="the database was left as it is")


def open_database(path: Path) -> Database:
    """Open or make the database and bring it up to date.

    Raises StoreTooNew for one of a newer program, StoreUnwritable when the disk refuses, StoreError when it is damaged.
    """
    doing = f"opening {path}"
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise StoreUnwritable(
            f"{doing}: {error.strerror}", hint="free space or fix permissions, or set AKASHIC_HOME"
        ) from error
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=True)
    database = Database(path, connection)
    try:
        connection.execute(f"PRAGMA busy_timeout={_BUSY_TIMEOUT_MS}")
        if connection.execute("PRAGMA page_count").fetchone()[0] == 0:
            connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute("PRAGMA secure_delete=ON")
        _migrate(database)
    except sqlite3.Error as error:
        connection.close()
        raise as_store_error(error, doing) from error
    except BaseException:
        connection.close()
        raise
    return database


def _migrate(database: Database) -> None:
    connection = database.connection
    have = connection.execute("PRAGMA user_version").fetchone()[0]
    if have > len(MIGRATIONS):
        raise StoreTooNew(
            f"opening {database.path}: it has version {have}, this program knows {len(MIGRATIONS)}",
            hint="upgrade akashic, or set AKASHIC_HOME to another folder",
        )
    for version in range(have, len(MIGRATIONS)):
        with database.transaction() as c:
            for statement in MIGRATIONS[version]:
                c.execute(statement)
            c.execute(f"PRAGMA user_version={version + 1}")
