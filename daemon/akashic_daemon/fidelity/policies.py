"""What the recorded answers' likelihood loses under any policies, and how often the likeliest token stays the same.

The full history and every policy are read in lockstep, as `score` does it. A long run is judged by some of its answers,
spread over it, so that the work is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from akashic_daemon.engine.base import FloatArray, ReadableEngine
from akashic_daemon.errors import BadRequest
from akashic_daemon.fidelity.measure import divergence, log_softmax, surprise
from akashic_daemon.fidelity.reader import PIECE_TOKENS, LogitsReader, TimeOver
from akashic_daemon.fidelity.turns import Run, Turn, TurnCutter
from akashic_daemon.program.path import Path
from akashic_daemon.program.policy import Policy
from akashic_daemon.program.weave import compile_ops

Tell = Callable[[dict[str, Any]], None]
FULL = "full"


@dataclass(slots=True)
class Sum:
    """Figures of one view, gathered over answers."""

    tokens: int = 0
    nll: float = 0.0
    kl: float = 0.0
    agreed: int = 0

    def add(self, tokens: Sequence[int], full: FloatArray, found: FloatArray) -> None:
        """Take in what was expected at some tokens, and by the full history."""
        self.tokens += len(tokens)
        self.nll += surprise(found, tokens)
        self.kl += 0.0 if found is full else divergence(full, found)
        self.agreed += int((full.argmax(axis=1) == found.argmax(axis=1)).sum())

    def take(self, other: Sum) -> None:
        """Take in what another sum has."""
        self.tokens += other.tokens
        self.nll += other.nll
        self.kl += other.kl
        self.agreed += other.agreed

    def figures(self) -> dict[str, Any]:
        """Return the means over all tokens."""
        return {
            "nll": self.nll / self.tokens,
            "kl": self.kl / self.tokens,
            "agreement": self.agreed / self.tokens,
            "tokens": self.tokens,
        }


@dataclass(slots=True)
class PolicyScorer:
    """Scores policies with one engine. most_turns: answers of a run that are read; fewer when `is_over` says so meanwhile.

    All policies have read the same answers, so what is known of a run that was cut short is comparable.
    """

    engine: ReadableEngine
    policies: Mapping[str, Policy]
    most_turns: int
    tell: Tell
    is_over: Callable[[], bool] = lambda: False

    def score(self, runs: Sequence[Run]) -> dict[str, Any]:
        """Return figures by run and policy, the full history among them; runs without a whole answer read are left out.

        Raises BadRequest when no answer fits.
        """
        cutter = TurnCutter(self.engine)
        window = self.engine.model.window_tokens
        scored, any_fits = {}, False
        for run in runs:
            fitting = [turn for turn in cutter.turns(run) if len(turn.layout.tokens) <= window]
            any_fits |= bool(fitting)
            if fitting and (found := self._run(spread(fitting, self.most_turns))) is not None:
                scored[run.name] = found
                self.tell({"scored": run.name})
        if not any_fits:
            raise BadRequest(
                f"measuring policies on {len(runs)} runs: no answer of them fits the window of {window:,} tokens",
                hint="name shorter runs, or a model with a longer window",
            )
        return {"model": self.engine.model.name, "runs": scored}

    def _run(self, turns: Sequence[Turn]) -> dict[str, Any] | None:
        window = self.engine.model.window_tokens
        sums = {name: Sum() for name in (FULL, *self.policies)}
        longest = max(len(turn.layout.tokens) for turn in turns)
        cells = (1 + len(self.policies)) * longest + 2 * PIECE_TOKENS
        reader = LogitsReader(self.engine, cells, self.is_over)
        try:
            for turn in turns:
                paths = {FULL: Path(turn.layout.tokens)} | {
                    name: compile_ops(turn.layout, rules=policy.bound(window)).path
                    for name, policy in self.policies.items()
                }
                answer = {name: Sum() for name in sums}
                score_answer(reader, turn, paths, answer)
                for name, found in answer.items():
                    sums[name].take(found)
        except TimeOver:
            pass
        finally:
            reader.forget()
        return {name: found.figures() for name, found in sums.items()} if sums[FULL].tokens else None


def score_answer(reader: LogitsReader, turn: Turn, paths: Mapping[str, Path], sums: Mapping[str, Sum]) -> None:
    """Add what each path expects at the answer's tokens to its sum; the full history's, named `full`, is the reference.

    All paths end with the turn's answer and what a template writes after it.
    """
    full = paths[FULL]
    for start in range(0, turn.said, PIECE_TOKENS):
        count = min(PIECE_TOKENS, turn.said - start)

        def read(path: Path, start: int = start, count: int = count) -> FloatArray:
            at = len(path) - turn.after - turn.said + start
            return log_softmax(reader.read(path, at - 1, at - 1 + count))

        at = len(full) - turn.after - turn.said + start
        tokens = full.tokens[at : at + count]
        reference = read(full)
        for name, path in paths.items():
            sums[name].add(tokens, reference, reference if path == full else read(path))


def spread(turns: Sequence[Turn], most: int) -> list[Turn]:
    """Return at most so many turns, the last one always among them: late ones are what a policy changes."""
    if len(turns) <= most:
        return list(turns)
    step = len(turns) / most
    return [turns[len(turns) - 1 - round(i * step)] for i in range(most)][::-1]
