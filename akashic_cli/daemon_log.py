"""The daemon's log as a file: its end, and what is written into it from then on."""

from __future__ import annotations

import codecs
import os
import time
from collections.abc import Iterator
from pathlib import Path

_LINE_BYTES = 400
_LOOK_S = 0.25


def log_tail(path: Path, lines: int, *, start: int = 0, end: int | None = None) -> list[str]:
    """Return the last lines of a log that stand between two bytes, whole ones. Raises OSError."""
    with path.open("rb") as file:
        size_bytes = file.seek(0, os.SEEK_END)
        end = size_bytes if end is None else min(end, size_bytes)
        back_bytes = _LINE_BYTES * max(lines, 1)
        while True:
            begin = max(start, end - back_bytes)
            file.seek(begin)
            data = file.read(max(0, end - begin))
            if begin <= start or data.count(b"\n") > lines:
                break
            back_bytes *= 4
    return data.decode("utf-8", "replace").splitlines()[-lines:] if lines > 0 else []


def followed(path: Path, at_byte: int) -> Iterator[str]:
    """Give what is written from a byte on, for ever. A log that shrank or is new is read from its start. Raises OSError."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while True:
        try:
            with path.open("rb") as file:
                file.seek(at_byte if file.seek(0, os.SEEK_END) >= at_byte else 0)
                data = file.read()
                at_byte = file.tell()
        except FileNotFoundError:  # moved away; the next daemon makes another
            data, at_byte = b"", 0
        if data:
            yield decoder.decode(data)
        time.sleep(_LOOK_S)
