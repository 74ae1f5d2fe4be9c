"""Times decode steps and prefills of an engine at given lengths; nobody else may use the engine meanwhile.

A round times every point once, on one sequence that grows from point to point. There are several rounds, and a time that
another program disturbed counts only where there is no other one. Which points are fitted to is fixed before.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from akashic_daemon.engine.base import BatchItem, Engine
from akashic_daemon.engine.threads import read_machine_busy_s
from akashic_daemon.planner.fitting import Point
from akashic_daemon.types import SequenceId

_PIECE_TOKENS = 512
_STEPS = 16
_ALONE = SequenceId(0)
_DISTURBED_SHARE, _DISTURBED_S = 0.1, 0.03
"""Others used so much of a core meanwhile, and more than the kernel's clock is off."""

QUICK = (
    Point("decode", 1, 32, 1, 0.0, True),
    Point("decode", 1, 1024, 1, 0.0, True),
    Point("prefill", 256, 0, 1, 0.0, True),
    Point("prefill", 256, 1024, 1, 0.0, True),
    Point("decode", 1, 64, 4, 0.0, True),
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
"""Fitted ones are short. The others are what the model is judged by."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How long timing may take: no round begins after `seconds`, and nothing goes on after `most_s`."""

    seconds: float
    most_s: float
    rounds: int = 5


@dataclass(frozen=True, slots=True)
class Taken:
    """Seconds of the same work, and whether another program ran meanwhile."""

    seconds: tuple[float, ...]
    is_disturbed: bool


def others_busy_s() -> float:
    """Return how long other programs have used cores, from any moment on."""
    return read_machine_busy_s() - sum(os.times()[:2])


@dataclass(slots=True)
class Timing:
    """Points with the times that were taken of them."""

    engine: Engine
    points: Sequence[Point]
    budget: Budget
    told: Callable[[Point], None] = lambda _: None
    clock: Callable[[], float] = time.perf_counter
    others_s: Callable[[], float] = others_busy_s
    rounds: int = 0
    _times: dict[Point, list[Taken]] = field(default_factory=dict)

    @property
    def fitting(self) -> list[Point]:
        """The points that the model's window and cells allow, in the order in which they are timed."""
        limit = min(self.engine.model.window_tokens, self.engine.capabilities.kv_cells)
        most = self.engine.capabilities.max_sequences

        def fits(point: Point) -> bool:
            needed = point.sequences * (point.history_tokens + max(point.new_tokens, _STEPS) + 1)
            return needed <= limit and point.sequences <= most

        # Those that are fitted to first: without them nothing is known when the time is over.
        def order(point: Point) -> tuple[bool, int, int, int]:
            return (not point.is_fitted, point.sequences, point.history_tokens, point.new_tokens)

        return sorted(filter(fits, self.points), key=order)

    def run(self) -> None:
        """Time rounds until the budget is spent."""
        began_s = self.clock()
        while self.rounds < self.budget.rounds and (self.rounds == 0 or self.clock() - began_s < self.budget.seconds):
            self._round(began_s + self.budget.most_s)
            self.rounds += 1

    def _round(self, deadline_s: float) -> None:
        walker = _Walker(self.engine, lambda: self.clock() > deadline_s)
        try:
            for point in self.fitting:
                taken = walker.time(point, self.others_s)
                self._times.setdefault(point, []).append(taken)
                self.told(point)
        except _TimeOver:
            return
        finally:
            walker.leave()

    def timed(self) -> list[Point]:
        """Return the points that were timed as they were asked for, each with its lower quartile.

        What else runs here only adds; but luck isn't counted either.
        """
        return [replace(p, seconds=_typical(self._times[p])) for p in self.points if p in self._times]

    def disturbed(self) -> list[Point]:
        """Return what was never timed without another program beside it."""
        return [point for point, taken in self._times.items() if all(t.is_disturbed for t in taken)]

    def left_out(self) -> list[Point]:
        """Return what fits and yet wasn't timed: the time was over."""
        return [point for point in self.fitting if point not in self._times]


def _typical(taken: Sequence[Taken]) -> float:
    alone = [t for t in taken if not t.is_disturbed] or taken
    times = sorted(seconds for t in alone for seconds in t.seconds)
    return times[(len(times) - 1) // 4]


class _TimeOver(Exception):
    """What was being timed is given up."""


class _Walker:
    """Goes through points with one sequence, which keeps what the next one needs; more sequences live for their point alone."""

    def __init__(self, engine: Engine, is_over: Callable[[], bool]) -> None:
        self._engine = engine
        self._is_over = is_over
        self._words = [t for t in engine.tokenize("one two three four five six seven", special=False) if t >= 0]
        self._grown = 0

    def time(self, point: Point, others_s: Callable[[], float]) -> Taken:
        """Return what was timed of a point: some steps, or one prefill."""
        sequences = [SequenceId(number) for number in range(point.sequences)]
        if point.sequences > 1:
            self.leave()  # an engine may look at the cells of all sequences
        elif point.history_tokens < self._grown:
            self._engine.release(_ALONE, point.history_tokens)
            self._grown = point.history_tokens
        try:
            for sequence in sequences:
                self._compute(sequence, self._grown, point.history_tokens - self._grown)
            before_s = others_s()
            if point.kind == "prefill":
                times = [_timed(lambda: self._compute(_ALONE, point.history_tokens, point.new_tokens))]
            else:
                times = [_timed(lambda at=n: self._step(sequences, point.history_tokens + at)) for n in range(_STEPS)]  # type: ignore[misc]
            others = others_s() - before_s
            return Taken(tuple(times), others > _DISTURBED_S + _DISTURBED_SHARE * sum(times))
        finally:
            for sequence in sequences:
                self._engine.release(sequence, 0 if point.sequences > 1 else point.history_tokens)
            self._grown = 0 if point.sequences > 1 else point.history_tokens

    def leave(self) -> None:
        """Release the sequence."""
        self._engine.release(_ALONE)
        self._grown = 0

    def _step(self, sequences: Sequence[SequenceId], at: int) -> None:
        self._decode([BatchItem(s, (self._words[0],), at, logits=True) for s in sequences])

    def _decode(self, batch: Sequence[BatchItem]) -> None:
        if self._is_over():
            raise _TimeOver
        self._engine.decode(batch)

    def _compute(self, sequence: SequenceId, start: int, count: int) -> None:
        for at in range(start, start + count, _PIECE_TOKENS):
            end = min(at + _PIECE_TOKENS, start + count)
            tokens = [self._words[i % len(self._words)] for i in range(at, end)]
            self._decode([BatchItem(sequence, tokens, at, logits=end == start + count)])


def _timed(work: Callable[[], None]) -> float:
    started_s = time.perf_counter()
    work()
    return time.perf_counter() - started_s
