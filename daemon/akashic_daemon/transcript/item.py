"""What passes between the files of this folder: records of a source, imported messages, problems.

A reader is fed one record at a time and answers with items; it never opens a file, and it keeps no more than
the turn that is still open. A record that it can't use makes it raise TranscriptError; the driver turns that into
a Problem and goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from akashic_daemon.trajectory.message import Message

MAIN = "main"
"""Conversation key of a file's main thread."""


@dataclass(frozen=True, slots=True)
class Record:
    """One JSON value of a source; `index` counts from 0, `line` from 1 and is None inside a JSON document.

    alone: the value is the whole document, not one of many.
    """

    index: int
    line: int | None
    value: Any
    alone: bool = False

    @property
    def place(self) -> str:
        """Name the record for people and for `Message.source`."""
        return f"line-{self.line}" if self.line is not None else f"element-{self.index}"


@dataclass(frozen=True, slots=True)
class Imported:
    """A message and where it belongs.

    conversation: `main`, or the id of a sub-agent or of a run. is_main is False for sub-agents only; a file that
    holds nothing but a sub-agent's log has no main conversation.
    """

    conversation: str
    message: Message
    line: int | None
    is_main: bool


@dataclass(frozen=True, slots=True)
class Problem:
    """A part of the source that couldn't be used, or was used with a loss; `line` counts from 1."""

    reason: str
    line: int | None


Item = Imported | Problem


class Reader(Protocol):
    """Turns the records of one format into items."""

    def feed(self, record: Record) -> Iterator[Item]:
        """Take one record. Raises TranscriptError if it is of no use."""

    def finish(self) -> Iterator[Item]:
        """Hand out what is still held back."""


@runtime_checkable
class SurveyingReader(Reader, Protocol):
    """A reader that has to see a whole source before it can read its beginning."""

    def survey(self, record: Record) -> None:
        """Look at one record, before the first is fed. Never raises."""

    def settle(self) -> None:
        """End the look; records are fed next, from the first."""
