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
        cutter = TurnCutter(self.engine)
        reports = []
        for run in runs:
            report = self._run(run, cutter)
            if report is not None:
                reports.append(report)
                self.tell({"run": report})
        if not reports:
            raise BadRequest(
                f"measuring {len(runs)} runs: no answer of them fits the window of {self._window:,} tokens",
                hint="name shorter runs, or a model with a longer window",
            )
        if cutter.unscored:
            self.tell(
                {"note": f"{cutter.unscored} answers are empty or can't be told from their role marks: not scored"}
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

    def _run(self, run: Run, cutter: TurnCutter) -> dict[str, Any] | None:
        turns = list(cutter.turns(run))
        fitting = [turn for turn in turns if len(turn.layout.tokens) <= self._window]
        if run.problems:
            self.tell({"note": f"{run.name}: {run.problems} parts of the file couldn't be used"})
        if len(fitting) < len(turns):
            left_out = len(turns) - len(fitting)
            self.tell({"note": f"{run.name}: {left_out} of {len(turns)} answers don't fit the window and are left out"})
        tallies = {variant: Tally() for variant in variants_of(self.keeps)}
        for keep in self.keeps if fitting else ():
            self._score_keep(run, keep, fitting, tallies)
        return run_report(run.name, tallies, len(turns) - len(fitting)) if fitting else None

    def _score_keep(self, run: Run, keep: int, turns: Sequence[Turn], tallies: dict[Variant, Tally]) -> None:
        """Score one group of variants beside the full one; the first group scores the full one too."""
        seen = [lay_out(turn, keep, self._window) for turn in turns]
        cells = max(sum(s.visible_tokens for s in views.values()) for views in seen) + 2 * PIECE_TOKENS
        reader = LogitsReader(self.engine, cells)
        group = {v: tallies[v] for v in seen[0] if v is not FULL or keep == self.keeps[0]}
        for turn, views in zip(turns, seen, strict=True):
            self._score_turn(turn, views, group, reader)
            self.tell({"turn": run.name})
        reader.forget()

    def _score_turn(
        self, turn: Turn, views: dict[Variant, Seen], tallies: dict[Variant, Tally], reader: LogitsReader
    ) -> None:
        full = views[FULL]
        cut = [variant for variant in tallies if views[variant].path != full.path]
        for variant, tally in tallies.items():
            tally.turn(views[variant], cut=variant in cut)
        for start in range(0, turn.said, PIECE_TOKENS):
            count = min(PIECE_TOKENS, turn.said - start)
            tokens = self._answer(turn, full, start, count)
            reference = self._expected(reader, turn, full, start, count)
            nll = surprise(reference, tokens)
            for variant, tally in tallies.items():
                if variant not in cut:
                    tally.score(count, nll, 0.0)  # the same path: the same computation
                    continue
                found = self._expected(reader, turn, views[variant], start, count)
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
