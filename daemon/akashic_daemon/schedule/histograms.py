"""How request times and sizes are spread, in the buckets that vLLM's dashboards know.

Written by the engine thread; anyone may read a copy. An observation costs a binary search and two additions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from akashic_daemon.protocol.native import Timing

_FIRST_TOKEN_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
_TOKEN_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_REQUEST_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0,
    7680.0,
)  # fmt: skip
_TOKENS = tuple(float(first * 10**zeros) for zeros in range(7) for first in (1, 2, 5))


class Histogram:
    """Counts of values by upper bound; the last count is of what is over all bounds."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def add(self, other: Histogram) -> None:
        """Count what another one with the same bounds has counted."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum

    def cumulative(self) -> Iterator[tuple[str, int]]:
        """Return for each bound how many values don't exceed it; the last bound is infinite."""
        total = 0
        for bound, count in zip([*map(str, self.bounds), "+Inf"], list(self.counts), strict=True):
            total += count
            yield bound, total


@dataclass(slots=True)
class Distributions:
    """All histograms of a daemon, under the ends of vLLM's names."""

    first_token: Histogram = field(default_factory=lambda: Histogram(_FIRST_TOKEN_S))
    inter_token: Histogram = field(default_factory=lambda: Histogram(_TOKEN_S))
    request_token: Histogram = field(default_factory=lambda: Histogram(_TOKEN_S))
    request: Histogram = field(default_factory=lambda: Histogram(_REQUEST_S))
    queued: Histogram = field(default_factory=lambda: Histogram(_REQUEST_S))
    prefill: Histogram = field(default_factory=lambda: Histogram(_REQUEST_S))
    decode: Histogram = field(default_factory=lambda: Histogram(_REQUEST_S))
    inference: Histogram = field(default_factory=lambda: Histogram(_REQUEST_S))
    prompt_tokens: Histogram = field(default_factory=lambda: Histogram(_TOKENS))
    generated_tokens: Histogram = field(default_factory=lambda: Histogram(_TOKENS))
    ends: Counter[str] = field(default_factory=Counter)
    """How requests ended that didn't fail."""

    def add(self, other: Distributions) -> None:
        """Count what others have counted."""
        for name in self.__dataclass_fields__:
            mine, theirs = getattr(self, name), getattr(other, name)
            if isinstance(mine, Histogram):
                mine.add(theirs)
            else:
                mine.update(dict(theirs))

    def finished(self, reason: str, timing: Timing, prompt_tokens: int, generated_tokens: int) -> None:
        """Count a request that ended; of one that its client left, only that."""
        self.ends[reason] += 1
        if reason == "cancelled":
            return
        self.request.observe(timing.total_s)
        self.queued.observe(timing.queued_s)
        self.prefill.observe(timing.prefill_s)
        self.decode.observe(timing.decode_s)
        self.inference.observe(timing.prefill_s + timing.decode_s)
        self.prompt_tokens.observe(prompt_tokens)
        self.generated_tokens.observe(generated_tokens)
        if generated_tokens > 1:
            self.request_token.observe(timing.decode_s / (generated_tokens - 1))
