"""Opening a block store: one process at a time, torn tails cut, a crash's leftovers removed, nothing guessed.

A store that can't be opened is left as it is: the error says why, and the daemon goes on without it.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from akashic_daemon.errors import Conflict, StoreError, StoreTooNew, StoreUnwritable
from akashic_daemon.paths import ensure_private_dir
from akashic_daemon.store.blocks import index
from akashic_daemon.store.blocks.extents import FILE_NAME, Extents
from akashic_daemon.store.blocks.files import FileOps, read_all
from akashic_daemon.store.blocks.layout import FILE_HEADER_BYTES, VERSION, file_version
from akashic_daemon.store.blocks.schema import MIGRATIONS, TABLES
from akashic_daemon.store.blocks.store import BlockStore
from akashic_daemon.store.database import Database, open_database
from akashic_daemon.types import Clock

EXTENT_BYTES = 256 << 20
"""An extent is closed at about this size; a larger record gets one of its own."""


def open_block_store(
    store_dir: Path,
    *,
    budget_bytes: int,
    clock: Clock,
    extent_bytes: int = EXTENT_BYTES,
    files: FileOps | None = None,
) -> BlockStore:
    """Open or make the store: `blocks.sqlite` and `extents/` in `store_dir`.

    Extents are at most a sixteenth of the budget, for the room of one is kept free. Raises Conflict while another
    process has it, StoreTooNew, StoreUnwritable when the disk refuses, StoreError when it is damaged or incomplete.
    """
    folder = ensure_private_dir(ensure_private_dir(store_dir) / "extents")
    lock_fd = _lock(folder)
    try:
        database = _open_index(store_dir / "blocks.sqlite", folder)
        try:
            extents = Extents(folder, files or FileOps())
            _recover(database, extents, clock)
            extent_bytes = min(extent_bytes, budget_bytes // 16)
            return BlockStore(database, extents, lock_fd, clock, budget_bytes=budget_bytes, extent_bytes=extent_bytes)
        except BaseException:
            database.close()
            raise
    except BaseException:
        os.close(lock_fd)
        raise


def _lock(folder: Path) -> int:
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise StoreUnwritable(
            f"opening {folder}: {error.strerror}", hint="fix its permissions, or set AKASHIC_HOME to another folder"
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise Conflict(
            f"opening {folder}: another process writes to this block store", hint="stop the other daemon"
        ) from None
    except OSError as error:
        os.close(fd)
        raise StoreUnwritable(
            f"locking {folder}: {error.strerror}", hint="its file system can't lock; set AKASHIC_HOME to a local one"
        ) from error
    return fd


def _open_index(path: Path, folder: Path) -> Database:
    """Open the index; a lost one isn't made anew beside the payloads that it named."""
    if not path.exists() and (names := _extent_files(folder)):
        raise StoreError(
            f"opening {path}: it is missing, though {folder} holds {len(names)} extents",
            hint=f"restore it, or move {folder} away to begin anew",
        )
    return open_database(path, migrations=MIGRATIONS, tables=TABLES)


def _extent_files(folder: Path) -> dict[int, Path]:
    found = ((FILE_NAME.fullmatch(path.name), path) for path in folder.iterdir())
    return {int(match[1]): path for match, path in found if match}


def _recover(database: Database, extents: Extents, clock: Clock) -> None:
    with database.reading() as c:
        ends, last_number = index.ends(c), index.last_number(c)
    try:
        found = _extent_files(extents.folder)
        if found.keys() != ends.keys() or any(found[n].stat().st_size != end for n, end in ends.items()):
            _trust(database)
        for number, end_bytes in ends.items():
            size = _settle(extents, found[number], number, end_bytes) if number in found else 0
            if size < end_bytes:
                _quarantine_cut(database, number, size, clock)
            if size >= FILE_HEADER_BYTES:
                extents.add(number, size, size)
        for number in found.keys() - {e.number for e in extents}:
            extents.files.unlink(found[number])
        extents.skip_numbers(max([last_number, *found]))
    except OSError as error:
        raise StoreUnwritable(
            f"recovering the extents in {extents.folder}: {error.strerror or error}",
            hint="free disk space or fix the folder's permissions; nothing that was stored is lost",
        ) from error


def _quarantine_cut(database: Database, number: int, size: int, clock: Clock) -> None:
    """Move aside what an extent lost with its end; without even a header left it isn't one any more."""
    with database.transaction() as c:
        index.quarantine_cut(c, number, size, clock.now_s())
        if size < FILE_HEADER_BYTES:
            index.drop(c, [number])


def _trust(database: Database) -> None:
    """Raise StoreError unless the index is sound: only then may what it doesn't name be cut or removed."""
    with database.reading() as c:
        wrong = index.faults(c)
    if wrong:
        raise StoreError(
            f"recovering {database.path}: the index is damaged ({wrong[0]}), so the extents were left as they are",
            hint="restore a backup, or move blocks.sqlite and extents away to begin anew",
        )


def _settle(extents: Extents, path: Path, number: int, end_bytes: int) -> int:
    """Cut what lies behind the committed end; return how long the file is now. Raises OSError, StoreTooNew."""
    fd = extents.files.open(path)
    try:
        header = bytearray(FILE_HEADER_BYTES)
        read_all(extents.files, fd, [memoryview(header)], 0)
        version = file_version(header, number)
        if version is not None and version > VERSION:
            raise StoreTooNew(
                f"opening {path}: it has version {version}, this program knows {VERSION}",
                hint="upgrade akashic, or set AKASHIC_HOME to another folder",
            )
        size = extents.files.size(fd)
        if size > end_bytes:
            extents.files.truncate(fd, end_bytes)
            extents.files.sync(fd)
        return min(size, end_bytes)
    finally:
        extents.files.close(fd)
