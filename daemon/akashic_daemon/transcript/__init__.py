"""Transcripts of other agents -> trajectory messages.

`detect_format` tells whose log a file is, `read_transcript` streams its messages. One file of this folder knows one
format; none of them opens files. Nothing is dropped silently but what a format's file names as noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from akashic_daemon.errors import TranscriptError
from akashic_daemon.trajectory.message import Message, Role
from akashic_daemon.transcript.detect import TEXT, Container, Sniffed, container_for, sniff
from akashic_daemon.transcript.item import MAIN, Imported, Item, Problem, Record, SurveyingReader
from akashic_daemon.transcript.readers import READERS, fed, storable_item
from akashic_daemon.transcript.source import read_document, read_lines, read_text

__all__ = ["FORMATS", "MAIN", "Imported", "Problem", "detect_format", "read_transcript"]

FORMATS: tuple[str, ...] = (*READERS, TEXT)
"""Names of the formats, as `format` takes them and `detect_format` returns them."""


def detect_format(path: Path) -> str:
    """Name the format of a file from its first MiB.

    Text, and JSON that is no known transcript, is `text`. Raises TranscriptError for binary or empty input.
    """
    return sniff(path).format


def read_transcript(
    path: Path,
    *,
    format: str | None = None,  # noqa: A002  the word that people type
    on_progress: Callable[[int], None] | None = None,
) -> Iterator[Imported | Problem]:
    """Yield the messages of a file in order of each conversation, and what couldn't be used.

    JSON lines stream in bounded memory. on_progress gets the bytes read so far, at most once in 256 KiB. Raises
    TranscriptError for an unknown format or unreadable file, and after the end if no message came out.
    """
    if format is not None and format not in FORMATS:
        raise TranscriptError(
            f"reading transcript {path}: unknown format {format!r}", hint=f"use one of {', '.join(FORMATS)}"
        )
    sniffed = sniff(path) if format is None else Sniffed(format, container_for(path, format))
    if sniffed.format == TEXT:
        items = _text_items(path, on_progress, is_wanted=format == TEXT)
    else:
        items = _items(path, sniffed, on_progress)
    return _checked(items, path, sniffed.format)


def _items(path: Path, sniffed: Sniffed, on_progress: Callable[[int], None] | None) -> Iterator[Item]:
    read = read_document if sniffed.container is Container.DOCUMENT else read_lines
    reader = READERS[sniffed.format]()
    if isinstance(reader, SurveyingReader):
        for record in read(path, None):
            if isinstance(record, Record):
                reader.survey(record)
        reader.settle()
    for record in read(path, on_progress):
        if isinstance(record, Problem):
            yield record
        else:
            yield from fed(reader, record)
    yield from reader.finish()


def _text_items(path: Path, on_progress: Callable[[int], None] | None, *, is_wanted: bool) -> Iterator[Item]:
    text, damage = read_text(path, on_progress)
    if not is_wanted and text.lstrip().startswith("{"):
        yield Problem("it begins like JSON and isn't a transcript that is known, so it was read as plain text", 1)
    if damage is not None:
        yield Problem(damage, None)
    if text.strip():
        yield Imported(MAIN, Message(Role.USER, text.replace("\r\n", "\n"), source="text"), 1, True)


def _checked(items: Iterator[Item], path: Path, format_name: str) -> Iterator[Item]:
    """Pass items on; raise after the last if none of them was a message."""
    first: Problem | None = None
    used = False
    for item in items:
        if isinstance(item, Imported):
            used = True
            yield storable_item(item)
            continue
        first = first or item
        yield item
    if not used:
        place = "" if first is None or first.line is None else f"line {first.line}: "
        why = "it holds no message" if first is None else f"nothing could be used; first {place}{first.reason}"
        raise TranscriptError(
            f"reading transcript {path} as {format_name}: {why}", hint="name the right format, or check the file"
        )
