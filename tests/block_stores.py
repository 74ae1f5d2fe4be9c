"""Block stores for tests: small extents, records whose payloads follow from their keys, and disks that fail."""

from __future__ import annotations

import errno
import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from akashic_daemon.store.blocks.files import FileOps
from akashic_daemon.store.blocks.opening import open_block_store
from akashic_daemon.store.blocks.reading import Into, Reads
from akashic_daemon.store.blocks.record import Bytes, Kind, Record
from akashic_daemon.store.blocks.store import BlockStore
from akashic_daemon.types import Clock


class FakeClock:
    """Stands still until it is told."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def now_s(self) -> float:
        """Return the time that was set."""
        return self.now

    def monotonic_s(self) -> float:
        """Return the time that was set."""
        return self.now


class CountingFiles(FileOps):
    """Counts the calls; the one numbered `fail_at` (from 1) fails, and all later ones too if `stays_broken`."""

    def __init__(self, fail_at: int | None = None, *, stays_broken: bool = False) -> None:
        self.calls: Counter[str] = Counter()
        self.fail_at = fail_at
        self.stays_broken = stays_broken
        self.failed = 0

    def _count(self, name: str) -> None:
        self.calls[name] += 1
        if self.fail_at is None or name == "close":
            return
        self.fail_at -= 1
        if self.fail_at == 0 or (self.fail_at < 0 and self.stays_broken):
            self.failed += 1
            raise OSError(errno.EIO if name == "read" else errno.ENOSPC, os.strerror(errno.ENOSPC))

    def create(self, path: Path) -> int:
        self._count("create")
        return super().create(path)

    def open(self, path: Path) -> int:
        self._count("open")
        return super().open(path)

    def write(self, fd: int, parts: Sequence[Bytes], offset: int) -> int:
        """Write half before it fails, as a disk that fills up does."""
        try:
            self._count("write")
        except OSError:
            super().write(fd, [parts[0][: len(parts[0]) // 2]], offset)
            raise
        return super().write(fd, parts, offset)

    def read(self, fd: int, parts: Sequence[bytearray | memoryview], offset: int) -> int:
        self._count("read")
        return super().read(fd, parts, offset)

    def sync(self, fd: int) -> None:
        self._count("sync")
        super().sync(fd)

    def truncate(self, fd: int, size: int) -> None:
        self._count("truncate")
        super().truncate(fd, size)

    def unlink(self, path: Path) -> None:
        self._count("unlink")
        super().unlink(path)

    def sync_folder(self, folder: Path) -> None:
        self._count("sync_folder")
        super().sync_folder(folder)


class WatchedFiles(CountingFiles):
    """Knows how much the files took at their fullest, also in the middle of a compaction."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.most_bytes = 0

    def write(self, fd: int, parts: Sequence[Bytes], offset: int) -> int:
        count = super().write(fd, parts, offset)
        self.most_bytes = max(self.most_bytes, sum(f.stat().st_size for f in self.folder.iterdir()))
        return count


def payload(key: str, size_bytes: int) -> bytes:
    """Return bytes that follow from a key and look random."""
    return hashlib.shake_128(key.encode()).digest(size_bytes)


def record(
    key: str,
    *,
    group: str = "g",
    sequence: int = 0,
    size_bytes: int = 5000,
    payload: bytes | None = None,
    token_ids: bytes | None = None,
) -> Record:
    """Return a record."""
    content = _content(key, size_bytes) if payload is None else payload
    return Record(key, Kind.KV, group, sequence, "fp", content, token_ids)


_content = payload


def open_store(
    store_dir: Path,
    *,
    budget_bytes: int = 1 << 24,
    extent_bytes: int = 1 << 18,
    files: FileOps | None = None,
    clock: Clock | None = None,
) -> BlockStore:
    """Open a small store."""
    return open_block_store(
        store_dir,
        budget_bytes=budget_bytes,
        extent_bytes=extent_bytes,
        files=files or CountingFiles(),
        clock=clock or FakeClock(),
    )


def read_group(store: BlockStore, group: str, into: Into | None = None) -> Reads:
    """Return a group's records to iterate, in order."""
    return store.read([entry.key for entry in store.entries(group)], into)
