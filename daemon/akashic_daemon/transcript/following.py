"""A log that is still being written: its lines are fed as they come, and what is held back can be asked for.

A message may stand on several lines, so the newest is held until the next one begins. Whoever goes on later from the line
where the oldest of them began (`held_from`) gets the same messages again, and loses none.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from typing import Any

from akashic_daemon.trajectory.message import Message, Role
from akashic_daemon.transcript.detect import TEXT, kind_of
from akashic_daemon.transcript.item import MAIN, Imported, Item, Problem, Record
from akashic_daemon.transcript.readers import READERS, fed, storable_item

ENOUGH_LINES = 50
"""Lines of JSON that are no known record: after so many they are text."""


def format_of_lines(lines: Sequence[bytes]) -> str | None:
    """Name the format that a log's first lines have; None while more of them must be seen."""
    seen = 0
    for raw in lines:
        if not raw.strip():
            continue
        seen += 1
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError):
            continue
        kind = kind_of(value)
        if kind is not None:
            return kind
    first = next((raw.lstrip()[:1] for raw in lines if raw.strip()), b"")
    return TEXT if (first and first not in b'{["') or seen >= ENOUGH_LINES else None


class LineFeed:
    """Lines of one format become messages."""

    def __init__(self, format_name: str) -> None:
        self.format = format_name
        self._reader = None if format_name == TEXT else READERS[format_name]()
        self._given: list[tuple[int, int]] = []
        """Of messages that were handed out: the first line, and the last one that may belong to it."""

    def feed(self, number: int, raw: bytes) -> Iterator[Item]:
        """Take a line; `number` counts from 1."""
        if not raw.strip():
            return
        text = raw.decode("utf-8", "replace").removeprefix("\ufeff")
        if self._reader is None:
            said = Message(Role.USER, text.rstrip("\r\n"), name="log", source=f"{TEXT}:line-{number}")
            yield storable_item(Imported(MAIN, said, number, True))
            return
        try:
            value: Any = json.loads(text)
        except (ValueError, RecursionError) as error:
            yield Problem(f"broken JSON: {error}"[:200], number)
            return
        for item in fed(self._reader, Record(number - 1, number, value)):
            if item.line is not None and item.line < number - 1:
                self._given.append((item.line, number - 1))
            yield storable_item(item) if isinstance(item, Imported) else item

    def held_from(self) -> int | None:
        """Return the line from which all that is held back is read again; None when nothing is held.

        A message that was handed out is read again in whole then or not at all: a part of it would be another message.
        """
        if self._reader is None:
            return None
        held = [item.line for item in copy.deepcopy(self._reader).finish() if item.line is not None]
        start = min(held, default=None)
        if start is None:
            self._given.clear()
            return None
        while (first := min((f for f, last in self._given if f < start <= last), default=None)) is not None:
            start = first
        self._given = [span for span in self._given if span[1] >= start]
        return start

    def settle(self) -> list[Item]:
        """Hand out what is held back, as whole as it is; what follows begins anew."""
        if self._reader is None:
            return []
        self._given.clear()
        return [storable_item(item) if isinstance(item, Imported) else item for item in self._reader.finish()]
