"""Reading an answer in channels, as gpt-oss writes it in OpenAI's harmony format. Pure.

Each part has a header that names its channel: what is said in `analysis` is thought, everything else is said. A part for a
recipient is a tool call; it is told as text in the wrapper that calls have where a template has none of its own (`GENERIC`),
in which the model may as well have written it. However the answer is cut into pieces, the same is told.
"""

from __future__ import annotations

import json
import re
from enum import Enum, auto

from akashic_daemon.toolcalls.form import Thinking
from akashic_daemon.toolcalls.syntax import GENERIC
from akashic_daemon.toolcalls.thought_marks import CHANNEL, MESSAGE, PART_ENDS, START

_CHANNEL = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([\w.\-]+)")
_BEGINNINGS = (CHANNEL, START, " to=")
_THOUGHT = "analysis"
_BETWEEN = "\n\n"
"""Stands between two parts that both are thought, or both said."""
_MOST_HEADER_CHARS = 256
"""What has no message for so long is no header."""


class _At(Enum):
    START = auto()
    HEADER = auto()
    BODY = auto()
    PLAIN = auto()


class ChannelReader:
    """Reads one answer, like `ThoughtReader`. thinking "must": the prompt ends within a thought."""

    def __init__(self, thinking: Thinking) -> None:
        self._at = {"none": _At.PLAIN, "may": _At.START, "must": _At.BODY}[thinking]
        self._channel = _THOUGHT
        self._recipient = ""
        self._has_begun = False
        """Whether anything of the current part was told."""
        self._held = ""
        self._thoughts: list[str] = []
        self._said: list[str] = []
        self._told_thoughts = self._told_said = 0

    @property
    def is_thinking(self) -> bool:
        """Whether what comes next is thought."""
        return self._at is _At.BODY and self._is_thought

    @property
    def is_over(self) -> bool:
        """Whether everything that follows is said."""
        return self._at is _At.PLAIN

    @property
    def thought(self) -> str | None:
        """What was thought."""
        return "".join(self._thoughts) or None

    def push(self, text: str) -> tuple[str, str]:
        """Add text and return what of it is certainly thought, and what certainly said."""
        self._held += text
        return self._read(is_last=False)

    def finish(self) -> tuple[str, str]:
        """Return what was held back; the answer has ended."""
        told = self._read(is_last=True)
        if self._at is _At.BODY:
            self._end_part()
        return told[0], told[1] + self._new()[1]

    @property
    def _is_thought(self) -> bool:
        return self._channel == _THOUGHT and not self._recipient

    def _new(self) -> tuple[str, str]:
        """Return what was found since the last time."""
        thoughts, said = self._thoughts[self._told_thoughts :], self._said[self._told_said :]
        self._told_thoughts, self._told_said = len(self._thoughts), len(self._said)
        return "".join(thoughts), "".join(said)

    def _read(self, *, is_last: bool) -> tuple[str, str]:
        steps = {_At.START: self._begin, _At.HEADER: self._read_header, _At.BODY: self._read_body}
        while self._at in steps and steps[self._at](is_last):
            pass
        if self._at is _At.PLAIN and self._held:
            self._said.append(self._held)
            self._held = ""
        return self._new()

    def _begin(self, is_last: bool) -> bool:
        """Tell if it is certain whether the answer begins with a header; one without is plain text."""
        if any(self._held.startswith(mark) for mark in _BEGINNINGS):
            self._at = _At.HEADER
        elif is_last or not any(mark.startswith(self._held) for mark in _BEGINNINGS):
            self._at = _At.PLAIN
        else:
            return False
        return True

    def _read_header(self, is_last: bool) -> bool:
        header, found, rest = self._held.partition(MESSAGE)
        if not found:
            if len(self._held) > _MOST_HEADER_CHARS or (is_last and not self._held.startswith(_BEGINNINGS)):
                self._at = _At.PLAIN  # whatever this is, it isn't lost
            return False
        channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
        self._channel = channel[1] if channel is not None else ""
        self._recipient = recipient[1] if recipient is not None else ""
        self._held, self._at, self._has_begun = rest, _At.BODY, False
        return True

    def _read_body(self, is_last: bool) -> bool:
        marks = (*PART_ENDS, START, CHANNEL)
        hits = [(at, mark) for mark in marks if (at := self._held.find(mark)) >= 0]
        if not hits:
            kept = 0 if is_last else max(_overlap(self._held, mark) for mark in marks)
            certain = len(self._held) - kept
            self._tell(self._held[:certain])
            self._held = self._held[certain:]
            return False
        at, mark = min(hits)
        self._tell(self._held[:at])
        self._end_part()
        self._held = self._held[at + len(mark) :] if mark in PART_ENDS else self._held[at:]
        self._at = _At.HEADER
        return True

    def _tell(self, text: str) -> None:
        if not text:
            return
        told = self._thoughts if self._is_thought else self._said
        if not self._has_begun:
            self._has_begun = True
            told += [_BETWEEN] if told else []
            told += [_call_begins(self._recipient)] if self._recipient else []
        told.append(text)

    def _end_part(self) -> None:
        if self._recipient and self._has_begun:
            self._said.append(f"}}{GENERIC.end}{GENERIC.closing}")
        self._has_begun, self._recipient, self._channel = False, "", ""


def _call_begins(recipient: str) -> str:
    name = json.dumps(recipient.removeprefix("functions."))
    return f'{GENERIC.opening}{GENERIC.start}{{"{GENERIC.name_key}": {name}, "{GENERIC.arguments_key}": '


def _overlap(text: str, mark: str) -> int:
    """Return the length of the longest end of a text that begins a mark."""
    return next((n for n in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:n])), 0)
