"""Sampled bytes to text: whole UTF-8 characters only, and never a part of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextAssembler:
    """Collects the text of one answer. `text` is what was given out; `stop_string` the one that ended it."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop = [s for s in stop if s]
        self._held = ""
        self._parts: list[str] = []
        self.stop_string: str | None = None

    @property
    def text(self) -> str:
        """All text given out so far."""
        return "".join(self._parts)

    def push(self, piece: bytes) -> str:
        """Add a token's bytes and return the text that is certain now. Nothing more comes after a stop string."""
        if self.stop_string is not None:
            return ""
        return self._give(self._decoder.decode(piece))

    def finish(self) -> str:
        """Return what was held back; the answer has ended without a stop string."""
        if self.stop_string is not None:
            return ""
        out = self._give(self._decoder.decode(b"", True))
        if self.stop_string is None and self._held:
            out += self._held
            self._parts.append(self._held)
            self._held = ""
        return out

    def _give(self, new: str) -> str:
        if not new:
            return ""
        if not self._stop:
            self._parts.append(new)
            return new
        text = self._held + new
        hits = [(at, s) for s in self._stop if (at := text.find(s)) >= 0]
        if hits:
            at, self.stop_string = min(hits)
            out, self._held = text[:at], ""
        else:
            held = max((_overlap(text, s) for s in self._stop), default=0)
            out, self._held = text[: len(text) - held], text[len(text) - held :]
        if out:
            self._parts.append(out)
        return out


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that begins `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
