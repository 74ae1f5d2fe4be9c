"""Logs that were compressed while they were followed: whether all of one had been read when it went.

Followed logs are read as they are written; what rotates them may compress one before its last lines were read. Compressed
logs aren't read; that some of one is missing is told. Knows gzip, bzip2 and xz, as they stand beside the old name.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path

from akashic_daemon.memory.watch import TAIL_BYTES, tail_digest
from akashic_daemon.store.memory.marks import WatchMark

SUFFIXES = (".gz", ".bz2", ".xz")
_PIECE_BYTES = 1 << 20
_BROKEN = (OSError, EOFError, zlib.error, lzma.LZMAError)


@dataclass(frozen=True, slots=True)
class Packed:
    """The compressed file that a followed log became, and how many bytes of the log were not read."""

    path: Path
    unread_bytes: int


def found_packed(path: Path, mark: WatchMark) -> Packed | None:
    """Return what a followed log that is gone was compressed to; None when it isn't beside its old name.

    It is known by what stands in it before the mark. Reads it to its end.
    """
    for beside in _packed_beside(path):
        try:
            with _opened(beside) as file:
                length = _length_if_it_is(_pieces(file), mark)
        except _BROKEN:
            continue  # another's, or not whole yet
        if length is not None:
            return Packed(beside, length - mark.offset_bytes)
    return None


def _packed_beside(path: Path) -> list[Path]:
    try:
        names = [p for p in path.parent.iterdir() if p.name.startswith(f"{path.name}.") and p.suffix in SUFFIXES]
        return sorted(names, key=lambda p: -p.stat().st_ctime_ns)
    except OSError:
        return []


def _opened(path: Path) -> BufferedIOBase:
    if path.suffix == ".gz":
        return gzip.GzipFile(path)
    return bz2.BZ2File(path) if path.suffix == ".bz2" else lzma.LZMAFile(path)


def _pieces(file: BufferedIOBase) -> Iterator[bytes]:
    while piece := file.read(_PIECE_BYTES):
        yield piece


def _length_if_it_is(pieces: Iterable[bytes], mark: WatchMark) -> int | None:
    """Return how long a text is; None if what stands before the mark isn't what stood there."""
    at, before = 0, b""
    for piece in pieces:
        if at < mark.offset_bytes:
            before = (before + piece[: mark.offset_bytes - at])[-TAIL_BYTES:]
        at += len(piece)
        if at >= mark.offset_bytes and tail_digest(before) != mark.tail:
            return None
    return at if at >= mark.offset_bytes > 0 else None
