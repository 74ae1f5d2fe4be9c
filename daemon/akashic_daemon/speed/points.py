"""Times decode steps and prefills of an engine at given lengths; nobody else may use the engine meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from akashic_daemon.engine.base import BatchItem, Engine
from akashic_daemon.planner.fitting import Point
from akashic_daemon.types import SequenceId

_PIECE_TOKENS = 512
_STEPS = 16
_PREFILLS = 3

QUICK = (
    Point("decode", 1, 32, 1, 0.0, True),
    Point("decode", 1, 1024, 1, 0.0, True),
    Point("prefill", 256, 0, 1, 0.0, True),
    Point("prefill", 256, 1024, 1, 0.0, True),
    Point("decode", 1, 512, 1, 0.0),
    Point("decode", 1, 2048, 1, 0.0),
    Point("prefill", 512, 0, 1, 0.0),
    Point("prefill", 256, 2048, 1, 0.0),
)
FULL = (
    *QUICK,
    Point("decode", 1, 4096, 1, 0.0),
    Point("decode", 1, 256, 4, 0.0),
    Point("prefill", 1024, 0, 1, 0.0),
    Point("prefill", 2048, 0, 1, 0.0),
    Point("prefill", 256, 4096, 1, 0.0),
)
"""Fitted ones first. The others are what the model is judged by."""


def time_points(engine: Engine, points: Sequence[Point]) -> Iterator[Point]:
    """Yield each point that fits the model's window and cells, with its time."""
    limit = min(engine.model.window_tokens, engine.capabilities.kv_cells)
    words = [token for token in engine.tokenize("one two three four five six seven", special=False) if token >= 0]
    for point in points:
        needed = point.sequences * (point.history_tokens + max(point.new_tokens, _STEPS) + 1)
        if needed <= limit and point.sequences <= engine.capabilities.max_sequences:
            yield replace(point, seconds=_Timer(engine, words).time(point))


class _Timer:
    def __init__(self, engine: Engine, words: Sequence[int]) -> None:
        self._engine = engine
        self._words = words

    def time(self, point: Point) -> float:
        """Return the seconds of the lower quartile: what else runs here only adds, but luck isn't counted either."""
        sequences = [SequenceId(number) for number in range(point.sequences)]
        try:
            for sequence in sequences:
                self._compute(sequence, 0, point.history_tokens)
            times = self._steps(sequences, point) if point.kind == "decode" else self._prefills(point)
        finally:
            for sequence in sequences:
                self._engine.release(sequence)
        return sorted(times)[len(times) // 4]

    def _steps(self, sequences: Sequence[SequenceId], point: Point) -> list[float]:
        def step(number: int) -> None:
            at = point.history_tokens + number
            self._engine.decode([BatchItem(s, (self._words[0],), at, logits=True) for s in sequences])

        return [_timed(lambda n=n: step(n)) for n in range(_STEPS)]  # type: ignore[misc]

    def _prefills(self, point: Point) -> list[float]:
        times = []
        for _ in range(_PREFILLS):
            self._engine.release(SequenceId(0), point.history_tokens)
            times.append(_timed(lambda: self._compute(SequenceId(0), point.history_tokens, point.new_tokens)))
        return times

    def _compute(self, sequence: SequenceId, start: int, count: int) -> None:
        for at in range(start, start + count, _PIECE_TOKENS):
            end = min(at + _PIECE_TOKENS, start + count)
            tokens = [self._words[i % len(self._words)] for i in range(at, end)]
            self._engine.decode([BatchItem(sequence, tokens, at, logits=end == start + count)])


def _timed(work: Callable[[], None]) -> float:
    started_s = time.perf_counter()
    work()
    return time.perf_counter() - started_s
