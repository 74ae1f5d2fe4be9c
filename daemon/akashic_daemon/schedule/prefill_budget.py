"""How many prompt tokens a step computes beside running streams: so many that no stream gets choppy, by measured time.

A stream's tokens come one a step, so a step with prompt tokens must not take much longer than one without. Both times
are measured all along: they change with the machine's load, the number of streams and the length of contexts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median

_SLOWDOWN = 2.2
"""A step with prompt tokens may take so many times one without; the tail of real ones then stays below 2.5 times."""
_UNNOTICED_S = 0.002
"""Nobody notices so much more, whatever a step takes."""
_LEAST = 2
"""A prefill goes on with at least so many: the first token of a step costs more than the next, so one alone wastes time."""
_FIRST = 8
_MEASURE_EVERY = 24
_KEPT = 9
"""So many of the newest measurements count, by their median: a machine that hiccups says nothing of the next step."""
_KEPT_ALONE = 32
"""Of steps without prompt tokens more count, by their lower quartile: taken on a busy moment they'd excuse slow steps."""


class PrefillBudget:
    """Learns from each step that had streams in it. `most` bounds what it allows."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._alone_s: dict[int, deque[float]] = {}
        """Seconds of a step without prompt tokens, by the streams' number in powers of two."""
        self._token_s: deque[float] = deque(maxlen=_KEPT)
        """Seconds that one prompt token adds to a step."""
        self._allowed = _FIRST
        """Twice what the last step took: one wrong measurement must not make a long step."""
        self._mixed = 0
        """Steps with prompt tokens since the last one without."""

    def tokens(self, streams: int) -> int:
        """Return how many prompt tokens the next step may compute; 0 when streams alone are to be measured."""
        alone_s = self._alone_s.get(streams.bit_length())
        if not alone_s or self._mixed >= _MEASURE_EVERY:
            return 0
        if not self._token_s:
            return min(self._allowed, self._most)
        room_s = max((_SLOWDOWN - 1) * _usual(alone_s), _UNNOTICED_S)
        return min(self._most, self._allowed, max(_LEAST, int(room_s / median(self._token_s))))

    def observe(self, streams: int, prompt_tokens: int, seconds: float) -> None:
        """Take in what a step took."""
        if not streams:
            return
        alone_s = self._alone_s.setdefault(streams.bit_length(), deque(maxlen=_KEPT_ALONE))
        if not prompt_tokens:
            self._mixed = 0
            alone_s.append(seconds)
        elif alone_s:
            self._mixed += 1
            self._allowed = max(_FIRST, 2 * prompt_tokens)
            self._token_s.append(max(1e-9, (seconds - _usual(alone_s)) / prompt_tokens))


def _usual(alone_s: Sequence[float]) -> float:
    return sorted(alone_s)[len(alone_s) // 4]
