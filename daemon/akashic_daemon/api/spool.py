"""Keeping an upload of any size in a private file while it is read."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from akashic_daemon.errors import StoreUnwritable
from akashic_daemon.paths import ensure_private_dir

_PREFIX = "import-"


async def spool(parts: AsyncIterator[bytes], folder: Path) -> Path:
    """Write an upload to a new file, 0600, and return its path: the caller removes it.

    Nothing is left behind when the upload breaks off. Raises StoreUnwritable when the disk doesn't take it.
    """
    path: Path | None = None
    try:
        ensure_private_dir(folder)
        descriptor, name = await asyncio.to_thread(tempfile.mkstemp, prefix=_PREFIX, dir=folder)
        path = Path(name)
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            async for part in parts:
                await asyncio.to_thread(_write_all, file.fileno(), part)
    except BaseException as error:
        if path is not None:
            path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise StoreUnwritable(
                f"keeping the transcript in {folder}: {error.strerror or error}", hint="free disk space"
            ) from error
        raise
    return path


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def remove_left_uploads(folder: Path) -> int:
    """Remove what a killed daemon left behind; return how many files. Call it with the home's lock held."""
    left = [path for path in folder.glob(_PREFIX + "*") if path.is_file()]
    for path in left:
        path.unlink(missing_ok=True)
    return len(left)
