"""Where each message ends in a rendered prompt, in time that grows with the history and not with its square.

Exactly: message i ends where the text of `messages[:i+1]` ends, if that begins the whole. A template that rewrites earlier
messages is asked again with a user message behind. That is a whole render for each message, so in a long history the
messages are rendered among a few neighbours first, and what a message adds there must stand at its place in the whole.
Borders found so are held between exact ones: of the first messages, of the last one, and of wherever neighbours and whole
disagree. If an exact border contradicts one that was found so, `contradicted` says it, and all are to be found exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from akashic_daemon.errors import TemplateError

EXACT_MESSAGES = 64
"""Borders of so many messages at the beginning are always found exactly."""
_FRESH_AFTER = 5
"""So many messages may stand before one among its neighbours until others are chosen; the work goes with their number."""
_NEIGHBOURS = 2
_FARTHEST_START = 64
_SHARED_AT_MOST = 8
"""So many messages behind one without a border of its own are looked at for their common one."""
_PROBE = {"role": "user", "content": "\u2063probe\u2063"}

Seen = dict[str, Any]
Exact = Callable[[int], int | None]
"""(index of a message) -> where it ends in the whole text, None when that can't be told."""


class Borders:
    """Finds the borders of one rendered prompt; ask in the order of messages."""

    def __init__(
        self, text: str, seen: Sequence[Seen], render: Callable[[list[Seen]], str], exact: Exact, *, near: bool
    ) -> None:
        """`seen`: the messages as the template is to see them, without tools; near: whether neighbours may be asked."""
        self._text = text
        self._seen = seen
        self._render = render
        self._exact = exact
        self._near = near
        self._start = 0
        self._last_user = _last_users(seen)
        self._rendered: dict[tuple[int, bool], str | None] = {}
        self._found: dict[int, int | None] = {}
        self._unproven: tuple[int, int] | None = None
        """The newest border that rests on neighbours alone: its message and place."""
        self.contradicted = False
        """Whether neighbours said otherwise than the whole does: what was found is worth nothing then."""

    def end(self, index: int, first: int, at: int) -> int | None:
        """Return where message `index` ends; the messages from `first` on begin at `at`. None when it shares its text."""
        if not self._near or index < EXACT_MESSAGES:
            return self._proven(index, at)
        is_last = index == len(self._seen) - 1
        end = self._among_neighbours(index, first, at)
        if is_last:
            exact = self._proven(index, at)
            if exact != end:
                self._prove()
            return end if exact is None else exact
        if end is not None:
            self._unproven = (index, end)
            return end
        later = range(index + 1, min(index + 1 + _SHARED_AT_MOST, len(self._seen)))
        if any(self._among_neighbours(i, first, at) is not None for i in later):
            return None
        self._prove()
        return self._proven(index, at)

    def _proven(self, index: int, at: int) -> int | None:
        end = self._exact(index)
        return end if end is not None and end >= at else None

    def _prove(self) -> None:
        """Look whether the newest border from neighbours is where the whole has it."""
        unproven, self._unproven = self._unproven, None
        if unproven is not None and self._exact(unproven[0]) not in (None, unproven[1]):
            self.contradicted = True

    def _among_neighbours(self, index: int, first: int, at: int) -> int | None:
        """Return where message `index` ends by what messages `first` to `index` add to a few before them."""
        if not self._choose_start(first):
            return None
        for probed in (False, True):
            before, behind = self._near_text(first, probed=probed), self._near_text(index + 1, probed=probed)
            if before is None or behind is None or not behind.startswith(before):
                continue
            if self._text.startswith(behind[len(before) :], at):
                return at + len(behind) - len(before)
        return None

    def _choose_start(self, first: int) -> bool:
        """Choose the neighbours before `first`: they begin with a user's or an assistant's message."""
        if self._start and _NEIGHBOURS <= first - self._start <= _FRESH_AFTER:
            return True
        self._rendered = {}
        for start in range(first - _NEIGHBOURS, max(0, first - _FARTHEST_START), -1):
            if self._seen[start]["role"] in ("user", "assistant"):
                self._start = start
                return True
        self._start = 0
        return False

    def _near_text(self, end: int, *, probed: bool) -> str | None:
        """Return the text of the neighbours up to `end`; probed: as it is with a user message behind."""
        key = (end, probed)
        if key not in self._rendered:
            shown = [*self._head(), *self._seen[self._start : end]]
            self._rendered[key] = text_before_a_user(self._render, shown) if probed else _or_none(self._render, shown)
        return self._rendered[key]

    def _head(self) -> list[Seen]:
        """Return what stands in for everything before the neighbours."""
        user = self._last_user[self._start]
        needs_user = self._seen[self._start]["role"] == "assistant" and user is not None
        return [self._seen[user]] if needs_user and user is not None else []


def text_before_a_user(render: Callable[[list[Seen]], str], shown: list[Seen]) -> str | None:
    """Return the text that messages have when a user message stands behind them; None when that can't be told."""
    longer, twice = _or_none(render, [*shown, _PROBE]), _or_none(render, [*shown, _PROBE, _PROBE])
    if longer is None or twice is None:
        return None
    turn = twice[len(longer) :]
    return longer.removesuffix(turn) if turn else None


def _or_none(render: Callable[[list[Seen]], str], shown: list[Seen]) -> str | None:
    try:
        return render(shown)
    except TemplateError:
        return None


def _last_users(seen: Sequence[Mapping[str, Any]]) -> list[int | None]:
    """Return for each message the index of the user's newest before it."""
    out: list[int | None] = []
    last: int | None = None
    for index, message in enumerate(seen):
        out.append(last)
        if message["role"] == "user":
            last = index
    return out
