"""The few file operations that the extents need: the seam where tests let a disk fail.

All raise OSError. `os.preadv` and `os.pwritev` release the GIL while the disk works.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from akashic_daemon.store.blocks.record import Bytes


class FileOps:
    """The operating system's own."""

    def create(self, path: Path) -> int:
        """Make a private file that doesn't exist yet; return its descriptor."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def open(self, path: Path) -> int:
        """Open a file for reading and writing."""
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def size(self, fd: int) -> int:
        """Return how long a file is."""
        return os.fstat(fd).st_size

    def write(self, fd: int, parts: Sequence[Bytes], offset: int) -> int:
        """Write at an offset; return how much was written."""
        return os.pwritev(fd, parts, offset)

    def read(self, fd: int, parts: Sequence[bytearray | memoryview], offset: int) -> int:
        """Fill buffers from an offset; return how much was read."""
        return os.preadv(fd, parts, offset)

    def sync(self, fd: int) -> None:
        """Return when the file is on the disk."""
        os.fsync(fd)

    def truncate(self, fd: int, size: int) -> None:
        """Cut a file."""
        os.ftruncate(fd, size)

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        os.close(fd)

    def unlink(self, path: Path) -> None:
        """Remove a file; one that is gone is no error."""
        path.unlink(missing_ok=True)

    def sync_folder(self, folder: Path) -> None:
        """Return when the folder's names are on the disk."""
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def write_all(files: FileOps, fd: int, parts: Sequence[Bytes], offset: int) -> None:
    """Write all the parts, also where the system takes them piece by piece."""
    left = [memoryview(p).cast("B") for p in parts]
    while left := [p for p in left if len(p)]:
        done = files.write(fd, left, offset)
        offset += done
        left = _rest(left, done)


def read_all(files: FileOps, fd: int, parts: Sequence[memoryview], offset: int) -> int:
    """Fill the buffers in order; return how much was read: less than asked only at the file's end."""
    left, total = list(parts), 0
    while left := [p for p in left if len(p)]:
        done = files.read(fd, left, offset + total)
        if done == 0:
            break
        total += done
        left = _rest(left, done)
    return total


def _rest(parts: list[memoryview], done: int) -> list[memoryview]:
    out: list[memoryview] = []
    for part in parts:
        taken = min(done, len(part))
        done -= taken
        out.append(part[taken:])
    return out
