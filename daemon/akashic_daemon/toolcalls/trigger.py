"""Noticing where in an answer a grammar sets in. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_BLANKS = " \t\r\n"


@dataclass(frozen=True, slots=True)
class Trigger:
    """Where a grammar sets in: at `text`, anywhere; at_start: only where the answer begins with it, blanks aside."""

    text: str
    at_start: bool = False


@dataclass(frozen=True, slots=True)
class Triggered:
    """A trigger that was said: the text from its beginning on, and the last tokens, in which it stands."""

    trigger: str
    text: str
    tokens: tuple[int, ...]


class GrammarTrigger:
    """Follows one answer, token by token; remembers no more of it than the longest trigger needs."""

    def __init__(self, triggers: Sequence[Trigger]) -> None:
        self._triggers = tuple(triggers)
        self._longest = max(len(t.text.encode()) for t in triggers)
        self._tail: list[tuple[int, bytes]] = []
        self._is_start = True
        """Whether the tail is the whole answer."""

    def push(self, token: int, piece: bytes) -> Triggered | None:
        """Add a token and what it prints, control tokens by their names; return the trigger that it completes."""
        self._tail.append((token, piece))
        said = b"".join(piece for _, piece in self._tail)
        for trigger in self._triggers:
            mark = trigger.text.encode()
            at = said.find(mark)
            if at < 0 or (trigger.at_start and (not self._is_start or said[:at].strip(_BLANKS.encode()))):
                continue
            text = said[at:].decode("utf-8", "replace")
            return Triggered(trigger.text, text, tuple(token for token, _ in self._tail))
        while self._tail and len(said) - len(self._tail[0][1]) >= self._longest - 1 and not self._may_begin(said):
            said = said[len(self._tail[0][1]) :]
            self._tail.pop(0)
            self._is_start = False
        return None

    def start_again(self) -> None:
        """Wait for the next trigger."""
        self._tail, self._is_start = [], False

    def _may_begin(self, said: bytes) -> bool:
        """Tell if the answer may still turn out to begin with a trigger."""
        start = said.lstrip(_BLANKS.encode())
        return self._is_start and any(t.at_start and t.text.encode().startswith(start) for t in self._triggers)
