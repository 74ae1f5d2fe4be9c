"""Reading the block of thoughts at the beginning of an answer: what the model thought, and what it says. Pure.

However the answer is cut into pieces, the same is told. Line breaks next to the marks belong to the block's form, as
templates write it, and are neither thought nor said.
"""

from __future__ import annotations

from akashic_daemon.toolcalls.channels import ChannelReader
from akashic_daemon.toolcalls.form import Thinking
from akashic_daemon.toolcalls.thought_marks import THINK, ThoughtMarks


class ThoughtReader:
    """Reads one answer. `thought` is what the block holds so far; None without a block, or with an empty one."""

    def __init__(self, thinking: Thinking, marks: ThoughtMarks = THINK) -> None:
        self._marks = marks
        self.is_thinking = thinking == "must"
        """Whether what comes next is thought."""
        self._may_begin = thinking == "may"
        self._behind = False
        """Whether line breaks behind the block may follow."""
        self._held = ""
        self._parts: list[str] = []

    @property
    def thought(self) -> str | None:
        """What was thought."""
        return "".join(self._parts) or None

    @property
    def is_over(self) -> bool:
        """Whether everything that follows is said."""
        return not (self.is_thinking or self._may_begin or self._behind)

    def push(self, text: str) -> tuple[str, str]:
        """Add text and return what of it is certainly thought, and what certainly said."""
        return self._read(text, is_last=False)

    def finish(self) -> tuple[str, str]:
        """Return what was held back; the answer has ended."""
        return self._read("", is_last=True)

    def _read(self, text: str, *, is_last: bool) -> tuple[str, str]:
        self._held += text
        if self._may_begin and not self._begin(is_last=is_last):
            return "", ""
        thought = self._think(is_last=is_last) if self.is_thinking else ""
        if self.is_thinking:
            return thought, ""
        if self._behind:
            self._held = self._held.lstrip("\n")
            self._behind = not self._held
        said, self._held = self._held, ""
        return thought, said

    def _begin(self, *, is_last: bool) -> bool:
        """Tell if it is certain whether the answer begins with a block."""
        start = self._held.lstrip()
        opening = self._marks.opening
        if start.startswith(opening):
            self._held, self.is_thinking = start[len(opening) :], True
        elif opening.startswith(start) and not is_last:
            return False
        self._may_begin = False
        return True

    def _think(self, *, is_last: bool) -> str:
        """Return what is certainly thought; line breaks at the end may yet belong to the mark."""
        thought, closing, rest = self._held.partition(self._marks.closing)
        if closing:
            self._held, self.is_thinking, self._behind = rest, False, True
            thought = thought.rstrip("\n")
        else:
            kept = 0 if is_last else _overlap(thought, self._marks.closing)
            kept = len(thought) - len(thought[: len(thought) - kept].rstrip("\n"))
            self._held = "" if is_last else thought[len(thought) - kept :]
            thought = thought[: len(thought) - kept]
        if not self._parts:
            thought = thought.lstrip("\n")
        if thought:
            self._parts.append(thought)
        return thought


def _overlap(text: str, mark: str) -> int:
    """Return the length of the longest end of a text that begins the closing mark."""
    return next((n for n in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:n])), 0)


def reader_of(thinking: Thinking, marks: ThoughtMarks) -> ThoughtReader | ChannelReader:
    """Return what reads an answer."""
    return ChannelReader(thinking) if marks.has_channels else ThoughtReader(thinking, marks)


def parted(answer: str, thinking: Thinking, marks: ThoughtMarks = THINK) -> tuple[str | None, str]:
    """Return what a whole answer thinks and what it says."""
    reader = reader_of(thinking, marks)
    said = reader.push(answer)[1] + reader.finish()[1]
    return reader.thought, said
