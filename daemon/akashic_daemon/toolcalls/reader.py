"""Reading an answer as it comes: which of it is text, and which is tool calls in the model's wrapper.

Text that may be the beginning of a wrapper, or of a stop string, is held back until it is certain. What stands in a wrapper
and isn't a call is text like any other. However the answer is cut into pieces, the events say the same. Stop strings end an
answer only where it is text: an argument may contain them. Pure.

A call is told when it is complete; with `streams`, when a grammar keeps what follows in form, its arguments are told as they
come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from akashic_daemon.toolcalls.calls import Call, Depth, calls_in, ends_at, header_of
from akashic_daemon.toolcalls.syntax import Shape, Syntax
from akashic_daemon.toolcalls.tags import TextParameters

_BLANKS = " \t\r\n"


@dataclass(frozen=True, slots=True)
class CallDelta:
    """More of call number `index`; the first one has its name."""

    index: int
    arguments: str
    name: str | None = None


Said = str | CallDelta


class _At(Enum):
    TEXT = auto()
    CALL = auto()
    ARGUMENTS = auto()
    CLOSING = auto()
    STOPPED = auto()


class CallReader:
    """Reads one answer. `calls` are the complete calls so far, `text` everything else that was told."""

    def __init__(
        self,
        syntax: Syntax | None,
        *,
        stop: Sequence[str] = (),
        streams: bool = False,
        most_calls: int | None = None,
        texts: TextParameters | None = None,
    ) -> None:
        self._syntax = syntax
        self._stop = tuple(s for s in stop if s)
        self._streams = streams
        self._most_calls = most_calls
        self._texts = texts
        self._at = _At.TEXT
        self._held = ""
        """What was said and isn't told yet."""
        self._opened = ""
        """The mark that opened the call which is being read, to be told as text should it be none."""
        self._began = False
        """Whether anything but blanks has been said."""
        self._after_call = False
        self._depth = Depth()
        self._parts: list[str] = []
        self._streamed: list[str] = []
        self._name = ""
        self._expected: list[str] = []
        """What may still end the call that was read."""
        self.calls: list[Call] = []
        self.stop_string: str | None = None

    @property
    def text(self) -> str:
        """The text told so far."""
        return "".join(self._parts)

    @property
    def is_over(self) -> bool:
        """Whether nothing more may come: a stop string was met, or the last call that was allowed."""
        enough = self._most_calls is not None and len(self.calls) >= self._most_calls and self._at is _At.TEXT
        return self._at is _At.STOPPED or enough

    def push(self, piece: str) -> list[Said]:
        """Add what was said and return what is certain now."""
        if self._at is _At.STOPPED:
            return []
        self._held += piece
        return self._read(is_last=False)

    def finish(self) -> list[Said]:
        """Return what was held back; the answer has ended."""
        return [] if self._at is _At.STOPPED else self._read(is_last=True)

    # -- the states --------------------------------------------------------------------------------------------

    def _read(self, *, is_last: bool) -> list[Said]:
        out: list[Said] = []
        steps = {
            _At.TEXT: self._read_text,
            _At.CALL: self._read_call,
            _At.ARGUMENTS: self._read_arguments,
            _At.CLOSING: self._read_closing,
        }
        while self._at is not _At.STOPPED and steps[self._at](out, is_last):
            pass
        return out

    def _tell(self, out: list[Said], text: str) -> None:
        if text:
            self._parts.append(text)
            out.append(text)

    def _read_text(self, out: list[Said], is_last: bool) -> bool:
        """Tell text up to the next wrapper or stop string; True when there is more to read in another way."""
        syntax = self._syntax
        held = self._held
        if syntax is not None and syntax.bare and (self._after_call or not self._began):
            start = held.lstrip(_BLANKS + (";" if self._after_call else ""))
            if start.startswith("{"):
                self._open("", held[: len(held) - len(start)])
                return True
            if not start and not is_last:
                return False
        marks = [] if syntax is None else [syntax.opening, *filter(None, syntax.outer)]
        hits = [(at, 0, s) for s in self._stop if (at := held.find(s)) >= 0]
        hits += [(at, 1, mark) for mark in marks if (at := held.find(mark)) >= 0]
        if not hits:
            self._tell_certain(out, marks, is_last)
            return False
        at, kind, found = min(hits)
        if not is_last and any(_overlap(held, mark) > len(held) - at for mark in (*marks, *self._stop)):
            return False  # another one, which began earlier, may yet be completed
        before, self._held = held[:at], held[at + len(found) :]
        if kind == 0:
            self._tell(out, self._behind_call(before))
            self._at, self.stop_string, self._held = _At.STOPPED, found, ""
            return False
        assert syntax is not None
        text = before.rstrip(_BLANKS)
        self._tell(out, self._behind_call(text))
        self._began, self._after_call = True, self._after_call and not text
        if found == syntax.opening:
            self._open(found, before[len(text) :])
        return True

    def _tell_certain(self, out: list[Said], marks: Sequence[str], is_last: bool) -> None:
        """Tell what can't be the beginning of anything."""
        held = self._held
        kept = 0 if is_last else max((_overlap(held, mark) for mark in (*marks, *self._stop)), default=0)
        if marks and not is_last:  # blanks before a wrapper belong to it
            kept = len(held) - len(held[: len(held) - kept].rstrip(_BLANKS))
        certain, self._held = held[: len(held) - kept], held[len(held) - kept :]
        certain = self._behind_call(certain)
        if certain:
            self._began, self._after_call = True, False
        self._tell(out, certain)

    def _behind_call(self, text: str) -> str:
        """Return text without the blanks that belong to the call before it."""
        if not self._after_call or (self._parts and text.strip(_BLANKS)):
            return text
        return text.lstrip(_BLANKS)

    def _open(self, mark: str, blanks: str) -> None:
        self._at, self._opened, self._began = _At.CALL, blanks + mark, True
        if not mark:
            self._held = self._held[len(blanks) :]

    def _read_call(self, out: list[Said], is_last: bool) -> bool:
        """Read what stands behind an opening: calls, or what turns out to be text."""
        syntax = self._syntax
        assert syntax is not None
        if self._streams and syntax.shape in (Shape.OBJECT, Shape.NAMED, Shape.LIST):
            header = header_of(self._held, syntax)
            if header is not None:
                self._name = header.name
                self._held = self._held[header.end :]
                self._depth, self._streamed, self._at = Depth(), [], _At.ARGUMENTS
                out.append(CallDelta(len(self.calls), "", header.name))
                return True
        end = ends_at(self._held, syntax, is_last=is_last)
        if end is None:
            return False
        calls = calls_in(self._held[:end], syntax, self._texts) if end else []
        if not calls:
            return self._no_call(out)
        self._held = self._held[end:]
        for call in calls:
            out.append(CallDelta(len(self.calls), call.arguments, call.name))
            self.calls.append(call)
        self._at, self._expected = _At.CLOSING, _ending(syntax, streamed=False)
        return True

    def _no_call(self, out: list[Said]) -> bool:
        """Take an opening for text, and read on behind it."""
        text, self._opened = self._opened, ""
        self._at, self._after_call = _At.TEXT, False
        if not text.strip(_BLANKS):
            # A bare object that is no call: its first character can't open anything.
            text, self._held = text + self._held[:1], self._held[1:]
        self._tell(out, text)
        return True

    def _read_arguments(self, out: list[Said], is_last: bool) -> bool:
        """Tell the arguments of a call whose form is certain."""
        assert self._syntax is not None
        end = self._depth.end_of(self._held)
        part = self._held if end is None else self._held[:end]
        self._held = "" if end is None else self._held[end:]
        if part:
            self._streamed.append(part)
            out.append(CallDelta(len(self.calls), part))
        if end is None:
            if is_last:  # cut off: told as far as it was said
                self.calls.append(Call(self._name, "".join(self._streamed)))
            return False
        self.calls.append(Call(self._name, "".join(self._streamed)))
        self._at, self._expected = _At.CLOSING, _ending(self._syntax, streamed=True)
        return True

    def _read_closing(self, out: list[Said], is_last: bool) -> bool:
        """Pass what ends a call; what is missing there is not missed."""
        syntax = self._syntax
        assert syntax is not None
        while self._expected:
            rest = self._held.lstrip(_BLANKS)
            mark = self._expected[0]
            if not is_last and mark.startswith(rest) and rest != mark:
                return False
            if not rest.startswith(mark):
                self._expected.pop(0)
                continue
            self._held = rest[len(mark) :]
            self._expected.pop(0)
            if mark == ",":
                self._at = _At.CALL
                return True
        self._expected = []
        self._at, self._after_call = _At.TEXT, True
        return True


def _ending(syntax: Syntax, *, streamed: bool) -> list[str]:
    """Return what is expected behind a call, in order."""
    marks = [syntax.end.strip(), syntax.closing]
    if streamed and syntax.shape is Shape.OBJECT:
        marks = ["}", *marks]
    elif streamed and syntax.shape is Shape.LIST:
        marks = ["}", ",", "]", *marks]
    return [mark for mark in marks if mark]


def _overlap(text: str, mark: str) -> int:
    """Return the length of the longest end of `text` that begins `mark` and isn't all of it."""
    for length in range(min(len(text), len(mark) - 1), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0
