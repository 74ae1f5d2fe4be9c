"""Holding an answer to a grammar for an engine that brings none: which of its tokens may come next. Pure.

Tokens that are parts of characters may come where some character beyond ASCII may; the last part is then checked as a whole.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Sequence

from akashic_daemon.toolcalls.matcher import Progress, grammar_of
from akashic_daemon.toolcalls.trigger import GrammarTrigger, Trigger

_BEYOND_ASCII = "\u00e9\u4e2d\U0001f600"


class Hold:
    """Follows one answer. piece: what a token prints; tokens that print nothing are allowed at the end alone, if they end."""

    def __init__(
        self,
        grammar: str,
        triggers: Sequence[Trigger],
        piece: Callable[[int], bytes],
        is_end: Callable[[int], bool],
    ) -> None:
        start = grammar_of(grammar).start()  # a broken one is refused at once
        self._at: Progress | None = None if triggers else start
        self._grammar = grammar
        self._trigger = GrammarTrigger(triggers) if triggers else None
        self._piece = piece
        self._is_end = is_end
        self._half = b""
        """The beginning of a character that the last token left unfinished."""

    def allows(self, token: int) -> bool:
        """Tell if a token may come next."""
        if self._at is None:
            return True
        if self._is_end(token):
            return self._at.may_end and not self._half
        found = self._after(self._at, token)
        return found is not None

    def allowed(self, tokens: Iterable[int], most: int) -> list[int]:
        """Return the first `most` of these tokens that may come next."""
        out: list[int] = []
        for token in tokens:
            if self.allows(token):
                out.append(token)
                if len(out) >= most:
                    break
        return out

    def accept(self, token: int) -> None:
        """Go on behind a token that was said."""
        if self._at is not None:
            if not self._is_end(token) and (found := self._after(self._at, token)) is not None:
                self._at, self._half = found
            return
        assert self._trigger is not None
        said = self._trigger.push(token, self._piece(token))
        if said is None:
            return
        start = grammar_of(self._grammar).start().after(said.text)
        if start.is_possible:
            self._at = start
        else:
            self._trigger.start_again()

    def _after(self, at: Progress, token: int) -> tuple[Progress, bytes] | None:
        """Return where one is behind a token, and the half character at its end; None when it isn't allowed."""
        piece = self._piece(token)
        if not piece:
            return None
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            text = decoder.decode(self._half + piece)
        except UnicodeDecodeError:
            return None
        half = bytes(decoder.getstate()[0])
        found = at.after(text) if text else at
        if not found.is_possible or (half and not any(found.after(c).is_possible for c in _BEYOND_ASCII)):
            return None
        return found, half
