"""Reading a file: its head, its lines in bounded memory, or the whole of it.

Lines of up to MAX_LINE_BYTES are read; a longer one is skipped as a Problem. Bytes that aren't UTF-8 are replaced and
reported. A byte order mark, CRLF and empty lines mean nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from akashic_daemon.errors import TranscriptError
from akashic_daemon.transcript.item import Problem, Record
from akashic_daemon.transcript.repair import readable_front

HEAD_BYTES = 1 << 20
MAX_LINE_BYTES = 64 << 20
MAX_DOCUMENT_BYTES = 512 << 20
PROGRESS_BYTES = 256 << 10
_BOM = b"\xef\xbb\xbf"

Progress = Callable[[int], None]


class _Counter:
    """Reports bytes read, at most once in PROGRESS_BYTES."""

    def __init__(self, report: Progress | None) -> None:
        self._report = report
        self._total = 0
        self._reported = 0

    def add(self, count: int) -> None:
        self._total += count
        if self._report is not None and self._total - self._reported >= PROGRESS_BYTES:
            self._reported = self._total
            self._report(self._total)


def open_source(path: Path) -> BinaryIO:
    """Open a regular file. Raises TranscriptError if it is none or can't be opened."""
    if not path.exists():
        raise TranscriptError(f"reading transcript {path}: no such file", hint="check the path")
    if not path.is_file():
        raise TranscriptError(f"reading transcript {path}: not a regular file", hint="give the file itself")
    try:
        return path.open("rb")
    except OSError as error:
        raise TranscriptError(f"reading transcript {path}: {error.strerror or error}", hint="check the path") from error


def read_lines(path: Path, on_progress: Progress | None = None) -> Iterator[Record | Problem]:
    """Yield the JSON value of each line; a line that holds none is a Problem."""
    counter = _Counter(on_progress)
    index = 0
    with open_source(path) as file:
        number = 0
        while raw := _read(file, path, MAX_LINE_BYTES + 1, line=True):
            number += 1
            counter.add(len(raw))
            if len(raw) > MAX_LINE_BYTES and not raw.endswith(b"\n"):
                _skip_line(file, path, counter)
                yield Problem(f"the line is longer than {MAX_LINE_BYTES >> 20} MiB", number)
                continue
            raw = raw.removeprefix(_BOM) if number == 1 else raw
            if not raw.strip():
                continue
            text, damage = _decode(raw)
            del raw
            if damage is not None:
                yield Problem(damage, number)
            try:
                value = json.loads(text)
            except (ValueError, RecursionError) as error:
                yield Problem(_reason(error), number)
                continue
            del text
            yield Record(index, number, value)
            index += 1


def read_document(path: Path, on_progress: Progress | None = None) -> Iterator[Record | Problem]:
    """Yield the elements of the list that a JSON document is, or its one object.

    A document that breaks off gives its whole elements and a Problem; TranscriptError if there are none.
    """
    text, damage = read_text(path, on_progress)
    if damage is not None:
        yield Problem(damage, None)
    value, fault = _parse(path, text)
    spans_lines = "\n" in text.strip()
    del text
    if isinstance(value, list):
        for index, element in enumerate(value):
            yield Record(index, None, element)
    else:
        yield Record(0, None if spans_lines else 1, value, alone=True)
    if fault is not None:
        yield fault


def read_text(path: Path, on_progress: Progress | None = None) -> tuple[str, str | None]:
    """Return a whole file as text, and what was lost in decoding it."""
    counter = _Counter(on_progress)
    with open_source(path) as file:
        size = path.stat().st_size
        if size > MAX_DOCUMENT_BYTES:
            raise TranscriptError(
                f"reading transcript {path}: {size} bytes as one document, more than {MAX_DOCUMENT_BYTES >> 20} MiB",
                hint="convert it to JSONL, which is read line by line",
            )
        chunks = []
        while chunk := _read(file, path, PROGRESS_BYTES):
            counter.add(len(chunk))
            chunks.append(chunk)
    raw = b"".join(chunks)
    del chunks
    return _decode(raw.removeprefix(_BOM))


def has_one_line(path: Path) -> bool:
    """Tell whether nothing but white space follows the first line that isn't blank."""
    with open_source(path) as file:
        seen_text = False
        while piece := _read(file, path, HEAD_BYTES, line=True):
            if piece.strip(b"\xef\xbb\xbf \t\r\n"):
                if seen_text:
                    return False
                while piece and not piece.endswith(b"\n"):
                    piece = _read(file, path, HEAD_BYTES, line=True)
                seen_text = True
    return True


def _read(file: BinaryIO, path: Path, limit: int, *, line: bool = False) -> bytes:
    try:
        return file.readline(limit) if line else file.read(limit)
    except OSError as error:
        raise TranscriptError(f"reading transcript {path}: {error.strerror or error}") from error


def _skip_line(file: BinaryIO, path: Path, counter: _Counter) -> None:
    while piece := _read(file, path, HEAD_BYTES, line=True):
        counter.add(len(piece))
        if piece.endswith(b"\n"):
            return


def _decode(raw: bytes) -> tuple[str, str | None]:
    try:
        return raw.decode("utf-8"), None
    except UnicodeDecodeError as error:
        return raw.decode("utf-8", "replace"), f"bytes that aren't UTF-8 were replaced, the first at byte {error.start}"


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "broken JSON: nested too deeply"
    return f"broken JSON: {error}"


def _parse(path: Path, text: str) -> tuple[Any, Problem | None]:
    """Return a document's value, and the Problem if only its front could be read."""
    try:
        return json.loads(text), None
    except (ValueError, RecursionError) as error:
        reason = _reason(error)
        value = readable_front(text, whole_elements=True)
        if value is None:
            raise TranscriptError(
                f"reading transcript {path}: {reason}, and nothing before that is whole", hint="check the file"
            ) from error
        return value, Problem(f"{reason}; what stands whole before that was read", None)
