"""Scores runs: every turn of every variant in lockstep with the full one, a slice of the answer at a time.

In lockstep, because a vocabulary's worth of logits for each token of a run would fill the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from akashic_daemon.engine.base import FloatArray, ReadableEngine
from akashic_daemon.errors import BadRequest, Unsupported
from akashic_daemon.fidelity.measure import divergence, log_softmax, surprise
from akashic_daemon.fidelity.reader import PIECE_TOKENS, LogitsReader
from akashic_daemon.fidelity.report import Tally, run_report, summary
from akashic_daemon.fidelity.turns import Run, Turn, TurnCutter
from akashic_daemon.fidelity.variants import FULL, Seen, Variant, lay_out, variants_of

Tell = Callable[[dict[str, Any]], None]
"""Takes news: {"turn": name}, {"note": text} or {"run": figures}."""


@dataclass(slots=True)
class Scorer:
    """Scores with one engine. Raises Unsupported at once when the model's cache can't be edited."""

    engine: ReadableEngine
    keeps: tuple[int, ...]
    tell: Tell

    def __post_init__(self) -> None:
        able = self.engine.capabilities
        for ability in ("drop", "repos"):
            if not getattr(able, ability):
                raise Unsupported(
                    f"measuring {ability} with {self.engine.model.name}: {able.why_not.get(ability, 'it has none')}",
                    hint="name another model; `akashic model show NAME` says what each can do",
                )

    def score(self, runs: Sequence[Run]) -> dict[str, Any]:
        """Return the figures of all runs. Raises BadRequest when no turn of any run fits the window."""
        cutter, reader = TurnCutter(self.engine), LogitsReader(self.engine)
        reports = []
        for run in runs:
            report = self._run(run, cutter, reader)
            if report is not None:
                reports.append(report)
                self.tell({"run": report})
            reader.forget()
        if not reports:
            raise BadRequest(
                f"measuring {len(runs)} runs: no answer of them fits the window of {self._window:,} tokens",
                hint="name shorter runs, or a model with a longer window",
            )
        if cutter.unscored:
            self.tell(
                {"note": f"{cutter.unscored} answers are empty or can't be told from their role marks: not scored"}
            )
        if reader.evicted_tokens:
            self.tell(
                {"note": f"{reader.evicted_tokens:,} tokens were evicted on the way; figures don't change by that"}
            )
        return {
            "model": self.engine.model.name,
            "window_tokens": self._window,
            "summary": summary(reports, variants_of(self.keeps)),
            "runs": reports,
        }

    @property
    def _window(self) -> int:
        return self.engine.model.window_tokens

    def _run(self, run: Run, cutter: TurnCutter, reader: LogitsReader) -> dict[str, Any] | None:
        tallies = {variant: Tally() for variant in variants_of(self.keeps)}
        turns = list(cutter.turns(run))
        fitting = [turn for turn in turns if len(turn.layout.tokens) <= self._window]
        left_out = len(turns) - len(fitting)
        if left_out:
            self.tell({"note": f"{run.name}: {left_out} of {len(turns)} answers don't fit the window and are left out"})
        if run.problems:
            self.tell({"note": f"{run.name}: {run.problems} parts of the file couldn't be used"})
        for turn in fitting:
            self._turn(turn, tallies, reader)
            self.tell({"turn": run.name})
        return run_report(run.name, tallies, left_out) if fitting else None

    def _turn(self, turn: Turn, tallies: dict[Variant, Tally], reader: LogitsReader) -> None:
        seen = lay_out(turn, self.keeps, self._window)
        full = seen[FULL]
        others = [variant for variant in tallies if variant is not FULL and seen[variant].path != full.path]
        for variant, tally in tallies.items():
            tally.turn(seen[variant], cut=variant in others)
        for start in range(0, turn.said, PIECE_TOKENS):
            count = min(PIECE_TOKENS, turn.said - start)
            tokens = self._answer(turn, full, start, count)
            reference = self._expected(reader, turn, full, start, count)
            nll = surprise(reference, tokens)
            for variant, tally in tallies.items():
                if variant not in others:
                    tally.score(count, nll, 0.0)  # the same path: the same computation
                    continue
                found = self._expected(reader, turn, seen[variant], start, count)
                tally.score(count, surprise(found, tokens), divergence(reference, found))

    @staticmethod
    def _answer(turn: Turn, seen: Seen, start: int, count: int) -> Sequence[int]:
        at = len(seen.path) - turn.after - turn.said + start
        return seen.path.tokens[at : at + count]

    @staticmethod
    def _expected(reader: LogitsReader, turn: Turn, seen: Seen, start: int, count: int) -> FloatArray:
        """Return the log probabilities for `count` tokens of the answer: those after the token before each."""
        at = len(seen.path) - turn.after - turn.said + start
        return log_softmax(reader.read(seen.path, at - 1, at - 1 + count))
