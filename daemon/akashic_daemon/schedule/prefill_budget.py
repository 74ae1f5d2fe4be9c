"""How many prompt tokens a step computes beside running streams: so many that no stream gets choppy, by measured time.

A stream's tokens come one a step, so a step with prompt tokens must not take much longer than one without. Both times
are measured all along: they change with the machine's load, the number of streams and the length of contexts.
"""

from __future__ import annotations

_SLOWDOWN = 1.9
"""A step with prompt tokens may take so many times one without; the tail of real steps then stays below 2.5 times."""
_UNNOTICED_S = 0.002
"""Nobody notices so much more, whatever a step takes."""
_LEAST = 8
"""A prefill goes on with at least so many tokens a step, however slow they are."""
_FIRST = 16
_MEASURE_EVERY = 64
_NEWEST = 0.3
"""Weight of the newest measurement."""


class PrefillBudget:
    """Learns from each step that had streams in it. `most` bounds what it allows."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._alone_s: dict[int, float] = {}
        """Seconds of a step without prompt tokens, by the streams' number in powers of two."""
        self._token_s: float | None = None
        """Seconds that one prompt token adds to a step."""
        self._mixed = 0
        """Steps with prompt tokens since the last one without."""

    def tokens(self, streams: int) -> int:
        """Return how many prompt tokens the next step may compute; 0 when streams alone are to be measured."""
        alone_s = self._alone_s.get(streams.bit_length())
        if alone_s is None or self._mixed >= _MEASURE_EVERY:
            return 0
        if self._token_s is None:
            return min(_FIRST, self._most)
        room_s = max((_SLOWDOWN - 1) * alone_s, _UNNOTICED_S)
        return min(self._most, max(_LEAST, int(room_s / self._token_s)))

    def observe(self, streams: int, prompt_tokens: int, seconds: float) -> None:
        """Take in what a step took."""
        if not streams:
            return
        size = streams.bit_length()
        if not prompt_tokens:
            self._mixed = 0
            self._alone_s[size] = _mixed(self._alone_s.get(size), seconds)
            return
        self._mixed += 1
        added_s = max(seconds - self._alone_s.get(size, 0.0), 0.0)
        self._token_s = max(1e-9, _mixed(self._token_s, added_s / prompt_tokens))


def _mixed(old: float | None, new: float) -> float:
    return new if old is None else old + _NEWEST * (new - old)
