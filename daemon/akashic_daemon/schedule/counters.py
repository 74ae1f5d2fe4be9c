"""Counters of requests. Each has one writer, the engine's thread or (of remote models) the event loop; anyone may read.

Racy reads are good enough. `merged` makes one of several for people.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass, field

from akashic_daemon.protocol.native import Reuse, Stats
from akashic_daemon.schedule.histograms import Distributions

_WINDOW_S = 5.0


@dataclass(slots=True)
class Counters:
    """Totals since the start, and recent samples for rates and percentiles."""

    requests_total: int = 0
    requests_failed_total: int = 0
    requests_cancelled_total: int = 0
    prompt_tokens_total: int = 0
    compactions_total: int = 0
    reused_tokens_total: int = 0
    computed_tokens_total: int = 0
    dropped_tokens_total: int = 0
    reposed_tokens_total: int = 0
    generated_tokens_total: int = 0
    preempted_total: int = 0
    steps_total: int = 0
    reloads_total: int = 0
    reload_s_total: float = 0.0
    """Seconds that requests waited for what the tiers gave back."""
    reused_by_tier: Counter[str] = field(default_factory=Counter)
    miss_causes: Counter[str] = field(default_factory=Counter)
    spread: Distributions = field(default_factory=Distributions)
    _first_token_s: deque[float] = field(default_factory=lambda: deque(maxlen=512))
    _inter_token_s: deque[float] = field(default_factory=lambda: deque(maxlen=2048))
    _generated_at: deque[float] = field(default_factory=lambda: deque(maxlen=8192))
    _computed_at: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=4096))

    def step(self, tokens: int, _step_s: float) -> None:
        """Count one step."""
        self.steps_total += 1
        self._computed_at.append((time.monotonic(), tokens))

    def prompt(self, reuse: Reuse) -> None:
        """Count one finished prefill."""
        self.prompt_tokens_total += reuse.reused_tokens + reuse.computed_tokens
        self.reused_tokens_total += reuse.reused_tokens
        self.computed_tokens_total += reuse.computed_tokens
        self.dropped_tokens_total += reuse.dropped_tokens
        self.reposed_tokens_total += reuse.reposed_tokens
        self.reused_by_tier.update(reuse.reused_by_tier)
        if reuse.miss is not None:
            self.miss_causes[reuse.miss.cause] += 1

    def token(self, first_token_s: float | None, since_last_s: float) -> None:
        """Count one sampled token; `first_token_s` is set for the first of a request."""
        self.generated_tokens_total += 1
        self._generated_at.append(time.monotonic())
        if first_token_s is not None:
            self._first_token_s.append(first_token_s)
            self.spread.first_token.observe(first_token_s)
        else:
            self._inter_token_s.append(since_last_s)
            self.spread.inter_token.observe(since_last_s)

    def piece(self, first_token_s: float | None, since_last_s: float) -> None:
        """Count one piece of an answer that another server computes."""
        self.token(first_token_s, since_last_s)
        self._computed_at.append((self._generated_at[-1], 1))

    def add(self, other: Counters) -> None:
        """Count what others have counted."""
        for name in self.__dataclass_fields__:
            mine, theirs = getattr(self, name), getattr(other, name)
            if isinstance(mine, int | float):
                setattr(self, name, mine + theirs)
            elif isinstance(mine, Distributions):
                mine.add(theirs)
            elif isinstance(mine, Counter):
                mine.update(dict(theirs))
            else:
                mine.extend(list(theirs))

    def fill(self, stats: Stats) -> None:
        """Copy everything into a snapshot."""
        for name in (
            "requests_total", "requests_failed_total", "requests_cancelled_total", "prompt_tokens_total", "compactions_total",
            "reused_tokens_total", "computed_tokens_total", "dropped_tokens_total",
            "reposed_tokens_total", "generated_tokens_total", "preempted_total", "steps_total",
        ):  # fmt: skip
            setattr(stats, name, getattr(self, name))
        stats.miss_causes = dict(self.miss_causes)
        stats.reused_by_tier = dict(self.reused_by_tier)
        since_s = time.monotonic() - _WINDOW_S
        generated = sum(1 for t in list(self._generated_at) if t >= since_s)
        computed = sum(n for t, n in list(self._computed_at) if t >= since_s)
        stats.decode_tokens_per_s = generated / _WINDOW_S
        stats.prefill_tokens_per_s = max(0, computed - generated) / _WINDOW_S
        stats.first_token_p50_s, stats.first_token_p95_s = _percentiles(list(self._first_token_s))
        stats.inter_token_p50_s, stats.inter_token_p95_s = _percentiles(list(self._inter_token_s))


def merged(*counters: Counters) -> Counters:
    """Return the sum of counters, as they are now."""
    out = Counters()
    for one in counters:
        out.add(one)
    return out


def _percentiles(samples: list[float]) -> tuple[float | None, float | None]:
    if not samples:
        return None, None
    samples.sort()
    return samples[len(samples) // 2], samples[min(len(samples) - 1, int(0.95 * len(samples)))]
