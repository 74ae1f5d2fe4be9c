"""One log that is followed: from its mark on, whole lines become messages to remember, and another mark.

A file is opened for each look, so that a look after a restart is like any other. What was remembered before its mark was
kept is read again and is the same again: memory keeps it once. Knows no store and no event loop.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from akashic_daemon.memory.from_messages import said_of
from akashic_daemon.memory.memory import Said
from akashic_daemon.store.memory.marks import WatchMark
from akashic_daemon.store.memory.rows import storable
from akashic_daemon.transcript.detect import TEXT
from akashic_daemon.transcript.following import LineFeed, format_of_lines
from akashic_daemon.transcript.item import Imported, Item, Problem
from akashic_daemon.transcript.source import MAX_LINE_BYTES

STEP_BYTES = 1 << 20
"""So much of a file is read in one go."""
MOST_HELD_BYTES = 4 << 20
"""A message that stays open for longer is taken as it is, so that a restart reads little again."""
TAIL_BYTES = 4096
"""So much before a mark tells whether a log is still the same."""


class Replaced(Exception):
    """The path leads to another file now, or to none."""


@dataclass(frozen=True, slots=True)
class Step:
    """What a look gave: messages by source, to be remembered in order; then the mark is to be kept.

    intent: to be kept before anything is remembered. behind_bytes: what is still to be read.
    """

    said: tuple[tuple[str, tuple[Said, ...]], ...]
    problems: tuple[Problem, ...]
    mark: WatchMark
    read_bytes: int
    behind_bytes: int
    intent: WatchMark | None = None


class Follower:
    """Reads one file on from a mark."""

    def __init__(self, mark: WatchMark) -> None:
        self.mark = mark
        self._start_at(mark)

    @property
    def is_holding(self) -> bool:
        """Tell if a message waits for more lines of it."""
        return self._at_bytes > self.mark.offset_bytes

    def look(self, path: Path, *, now_s: float, quiet_s: float) -> Step | None:
        """Read on; None when there is nothing new. A file that wasn't written for `quiet_s` is read to its end.

        Raises Replaced, and OSError when it can't be read.
        """
        try:
            file = path.open("rb", buffering=0)
        except FileNotFoundError as error:
            raise Replaced from error
        with file:
            stat = os.fstat(file.fileno())
            if (stat.st_dev, stat.st_ino) != self.mark.key:
                raise Replaced
            if (
                stat.st_size < max(self._at_bytes, self.mark.settle_bytes or 0)
                or _tail(file, self._at_bytes) != self._tail
            ):
                return self._begun_anew(path, stat.st_size)
            step = self._step(file, stat.st_size)
            if step is None and now_s - stat.st_mtime >= quiet_s:
                step = self._ended(file, stat.st_size)
            return step

    def _start_at(self, mark: WatchMark) -> None:
        self.mark = mark
        self._at_bytes, self._line, self._tail = mark.offset_bytes, mark.line, mark.tail or tail_digest(b"")
        self._feed = LineFeed(mark.format) if mark.format else None
        self._starts: deque[tuple[int, int]] = deque()
        """Number and place of each line since the mark."""

    def _begun_anew(self, path: Path, size_bytes: int) -> Step:
        held = self._feed.settle() if self._feed is not None and self.is_holding else []
        self._start_at(WatchMark(storable(str(path)), *self.mark.key))
        told = Problem("it was cut or written anew, and is read from its start", None)
        return self._made([*held, told], 0, size_bytes)

    def _step(self, file: BinaryIO, size_bytes: int) -> Step | None:
        goal = self.mark.settle_bytes
        raw = _read(file, self._at_bytes, size_bytes if goal is None else goal, whole_lines=goal is None)
        if raw:
            lines = _lines(raw)
            if self._feed is None:
                name = format_of_lines(lines)
                if name is None and len(raw) < STEP_BYTES:
                    return None
                self._feed = LineFeed(name or TEXT)
            items = list(self._fed(lines))
            self._tail = _tail(file, self._at_bytes)
        elif goal is None:
            return None
        else:
            items = []
        if goal is not None and self._at_bytes >= goal:
            return self._settled(file, size_bytes, items, len(raw))
        mark = self._mark_before_held(file)
        if goal is None and self._at_bytes - mark.offset_bytes > MOST_HELD_BYTES:
            return self._settled(file, size_bytes, items, len(raw))
        self.mark = mark
        return self._made(items, len(raw), size_bytes)

    def _ended(self, file: BinaryIO, size_bytes: int) -> Step | None:
        """Take what is held back, and a last line that is whole but for its end."""
        last = os.pread(file.fileno(), size_bytes - self._at_bytes, self._at_bytes) if self._feed else b""
        items = list(self._fed([last])) if _is_json(last) else []
        if not self.is_holding:
            return None
        self._tail = _tail(file, self._at_bytes)
        return self._settled(file, size_bytes, items, len(last) if items else 0)

    def _fed(self, lines: Sequence[bytes]) -> Iterator[Item]:
        assert self._feed is not None
        for raw in lines:
            self._line += 1
            self._starts.append((self._line, self._at_bytes))
            self._at_bytes += len(raw)
            if len(raw) > MAX_LINE_BYTES:
                yield Problem(f"the line is longer than {MAX_LINE_BYTES >> 20} MiB", self._line)
            else:
                yield from self._feed.feed(self._line, raw)

    def _mark_before_held(self, file: BinaryIO) -> WatchMark:
        """Return the mark from which all that is held back is read again."""
        assert self._feed is not None
        held = self._feed.held_from()
        while self._starts and (held is None or self._starts[0][0] < held):
            self._starts.popleft()
        line, offset = (self._starts[0][0] - 1, self._starts[0][1]) if self._starts else (self._line, self._at_bytes)
        return replace(self.mark, offset_bytes=offset, line=line, tail=_tail(file, offset), format=self._feed.format)

    def _settled(self, file: BinaryIO, size_bytes: int, items: list[Item], read_bytes: int) -> Step:
        """Give out what is held back. Noted before it is done: a file that grew meanwhile would be read otherwise."""
        assert self._feed is not None
        intent = replace(self.mark, settle_bytes=self._at_bytes, format=self._feed.format)
        items += self._feed.settle()
        self._starts.clear()
        self.mark = replace(
            intent, offset_bytes=self._at_bytes, line=self._line, tail=_tail(file, self._at_bytes), settle_bytes=None
        )
        return self._made(items, read_bytes, size_bytes, intent)

    def _made(self, items: Sequence[Item], read_bytes: int, size_bytes: int, intent: WatchMark | None = None) -> Step:
        said: list[tuple[str, tuple[Said, ...]]] = []
        for item in items:
            if isinstance(item, Imported) and (own := _said(item)):
                source = self.mark.path if item.is_main else f"{self.mark.path}#{item.conversation}"
                if said and said[-1][0] == source:
                    own = [*said.pop()[1], *own]
                said.append((source, tuple(own)))
        problems = tuple(item for item in items if isinstance(item, Problem))
        return Step(tuple(said), problems, self.mark, read_bytes, max(0, size_bytes - self._at_bytes), intent)


def _said(item: Imported) -> list[Said]:
    """Return the message to remember, known by its line: the same words on two lines were said twice."""
    name = item.message.source or f"line-{item.line}"
    return [replace(one, reference=name) for one in said_of([item.message])]


def continues(path: Path, mark: WatchMark) -> bool:
    """Tell if a file is what was followed to the mark: the number of one that is gone is given to another soon."""
    try:
        with path.open("rb", buffering=0) as file:
            long_enough = os.fstat(file.fileno()).st_size >= mark.offset_bytes
            return long_enough and _tail(file, mark.offset_bytes) == (mark.tail or tail_digest(b""))
    except OSError:
        return False


def _read(file: BinaryIO, start: int, goal: int, *, whole_lines: bool) -> bytes:
    """Return about STEP_BYTES of lines, or one longer line. whole_lines: what isn't ended at the goal is left there."""
    pieces: list[bytes] = []
    at = start
    while at < goal and (piece := os.pread(file.fileno(), min(STEP_BYTES, goal - at), at)):
        at += len(piece)
        end = len(piece) if at == goal and not whole_lines else piece.rfind(b"\n") + 1
        pieces.append(piece[:end] if end else piece)
        if end:
            return b"".join(pieces)
    return b""


def _lines(raw: bytes) -> list[bytes]:
    """Cut behind each line feed, and nowhere else."""
    *whole, last = raw.split(b"\n")
    return [line + b"\n" for line in whole] + ([last] if last else [])


def _is_json(raw: bytes) -> bool:
    try:
        json.loads(raw)
    except (ValueError, RecursionError):
        return False
    return True


def _tail(file: BinaryIO, offset: int) -> str:
    length = min(TAIL_BYTES, offset)
    return tail_digest(os.pread(file.fileno(), length, offset - length))


def tail_digest(body: bytes) -> str:
    """Return what stands before a mark, as marks keep it."""
    return "tail1:" + hashlib.blake2b(body, digest_size=16).hexdigest()
