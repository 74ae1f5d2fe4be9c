"""Writing files that must be whole or not there."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from akashic_daemon.errors import StoreUnwritable


def write_atomically(path: Path, content: str | bytes | Iterable[bytes]) -> None:
    """Write a file beside its place and move it there; a new file is private. Raises StoreUnwritable.

    Nothing is moved there when `content` raises in the middle.
    """
    pieces = (content.encode(),) if isinstance(content, str) else (content,) if isinstance(content, bytes) else content
    target = path.resolve()
    temporary = None
    try:
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o600
        descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(descriptor, "wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, target)
    except BaseException as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        if not isinstance(error, OSError):
            raise
        raise StoreUnwritable(
            f"writing {path}: {error.strerror or error}", hint="free space, fix permissions or choose another file"
        ) from error
