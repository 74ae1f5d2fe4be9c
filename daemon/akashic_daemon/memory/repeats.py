"""What dense text can do without: lines that stand elsewhere already, and reads of a file that was read again.

Code, logs and tables are kept word for word otherwise. Each piece left out is named, with the place that has it, so the
text can be put together again; `LineIndex` and `superseded` know only turn numbers and lines, not where they are stored.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

_LEAST_LINES = 3
_LEAST_CHARS = 80
"""A shorter run isn't worth the words that say where it is."""
_LONG_LINE_CHARS = 160
_REFERRED = re.compile(r"\[\d+ lines as in turn (\d+), from line \d+\]")


@dataclass(frozen=True, slots=True)
class FileRead:
    """A turn that shows a file, whole or from line to line (both included), in so many characters."""

    turn: int
    path: str
    first_line: int | None = None
    last_line: int | None = None
    length_chars: int = 0

    def covers(self, other: FileRead) -> bool:
        """Whether all that `other` shows of the same file is shown here too.

        A turn of less than half the characters may be a failure or "unchanged", so it covers nothing.
        """
        first, last = self.first_line or 1, self.last_line
        if first > (other.first_line or 1) or 2 * self.length_chars < other.length_chars:
            return False
        return last is None or (other.last_line is not None and other.last_line <= last)


@dataclass(frozen=True, slots=True)
class _Run:
    begin: int
    end: int
    turn: int
    line: int


@dataclass(slots=True)
class LineIndex:
    """Where lines were seen first: the digests of three lines in a row, or of one long line."""

    places: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    texts: dict[int, Sequence[str]] = field(default_factory=dict)

    def trim(self, turn: int, text: str) -> str:
        """Return the text with each run that an earlier turn has replaced by a reference, and take its own lines in.

        turn: later than those before. Runs are compared as text, not by their digests alone.
        """
        found = text.split("\n")
        kept: list[str] = []
        at = 0
        for run in self._runs(found):
            kept += found[at : run.begin]
            count = run.end - run.begin
            kept.append(f"[{count} lines as in turn {run.turn}, from line {run.line + 1}]")
            at = run.end
        kept += found[at:]
        self._take(turn, found)
        return "\n".join(kept)

    def _runs(self, found: Sequence[str]) -> list[_Run]:
        runs: list[_Run] = []
        at = 0
        while at < len(found):
            run = self._run_at(found, at)
            if run is None:
                at += 1
            else:
                runs.append(run)
                at = run.end
        return runs

    def _run_at(self, found: Sequence[str], at: int) -> _Run | None:
        place = next((p for key in _keys(found, at) if (p := self.places.get(key)) is not None), None)
        if place is None:
            return None
        turn, line = place
        other = self.texts[turn]
        count = 0
        while at + count < len(found) and line + count < len(other) and found[at + count] == other[line + count]:
            count += 1
        if sum(len(text) + 1 for text in found[at : at + count]) < _LEAST_CHARS:
            return None
        return _Run(at, at + count, turn, line)

    def _take(self, turn: int, found: Sequence[str]) -> None:
        self.texts[turn] = found
        for line in range(len(found)):
            for key in _keys(found, line):
                self.places.setdefault(key, (turn, line))


def referred(text: str) -> set[int]:
    """Return the turns that a trimmed text names for what was left out of it."""
    return {int(turn) for turn in _REFERRED.findall(text)}


def _keys(found: Sequence[str], at: int) -> list[bytes]:
    """Return the digests by which the lines at a place are found, the surest first."""
    keys = []
    if at + _LEAST_LINES <= len(found):
        keys.append(_digest("\n".join(found[at : at + _LEAST_LINES])))
    if len(found[at]) >= _LONG_LINE_CHARS:
        keys.append(_digest(found[at]))
    return keys


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def superseded(reads: Sequence[FileRead]) -> dict[int, int]:
    """Return which turns show nothing that a later read of the same file doesn't show too: turn -> the latest such turn.

    reads: in the order of the turns. A turn that shows several files stays as long as one of them is wanted.
    """
    newest: dict[int, int] = {}
    wanted: set[int] = set()
    later: dict[str, list[FileRead]] = {}
    for read in reversed(reads):
        by = next((r for r in later.get(read.path, ()) if r.turn > read.turn and r.covers(read)), None)
        if by is None:
            wanted.add(read.turn)
        else:
            newest[read.turn] = max(by.turn, newest.get(read.turn, 0))
        later.setdefault(read.path, []).append(read)
    return {turn: by for turn, by in newest.items() if turn not in wanted}


def superseded_note(path: str, by: int) -> str:
    """Return what stands in the place of a superseded read."""
    return f"[{path} as it was then; read again in turn {by}]"
