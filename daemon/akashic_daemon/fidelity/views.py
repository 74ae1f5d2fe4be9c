"""`python -m akashic_daemon.fidelity.views FILE`: the likelihood of recorded answers after what clients made of a history.

FILE is JSON: {"model", "policies": {NAME: policy}, "runs": [{"run", "messages", "turns": [{"answer", "prompts": {NAME: messages}}]}]}.
`policies` are carried out on the cache of the whole history; `prompts` are other texts, which the same answer follows.
Lines on stdout as `fidelity` has them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

from akashic_daemon.config import load
from akashic_daemon.engine.base import ReadableEngine
from akashic_daemon.errors import BadRequest, TranscriptError
from akashic_daemon.fidelity.opening import known_model, open_engine
from akashic_daemon.fidelity.policies import FULL, Sum, Tell, score_answer
from akashic_daemon.fidelity.reader import PIECE_TOKENS, LogitsReader
from akashic_daemon.fidelity.turns import Turn, TurnCutter
from akashic_daemon.paths import find_paths
from akashic_daemon.process.measuring import tell, tell_result
from akashic_daemon.program.path import Path
from akashic_daemon.program.policy import Policy
from akashic_daemon.program.policy import load as load_policy
from akashic_daemon.program.weave import compile_ops
from akashic_daemon.transcript.openai_messages import messages_from_openai

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class View:
    """One answer after each of its histories."""

    turn: Turn
    paths: Mapping[str, Path]


@dataclass(slots=True)
class ViewScorer:
    """Scores with one engine. left_out: answers of which a view doesn't fit the window or can't be cut."""

    engine: ReadableEngine
    policies: Mapping[str, Policy]
    tell: Tell
    left_out: int = 0

    def score(self, runs: list[JsonObject]) -> list[JsonObject]:
        """Return, by run, the figures of each view. Raises BadRequest when no answer can be scored."""
        cutter = TurnCutter(self.engine)
        scored = []
        for run in runs:
            messages = messages_from_openai(run["messages"], lenient=True)
            views = [view for turn in run["turns"] if (view := self._view(cutter, messages, turn)) is not None]
            self.left_out += len(run["turns"]) - len(views)
            if views:
                scored.append({"run": run["run"], "answers": len(views), "views": self._run(views)})
        if not scored:
            raise BadRequest(
                f"measuring {len(runs)} runs: no answer of them fits the window of {self._window:,} tokens in every view",
                hint="name shorter runs, or a model with a longer window",
            )
        return scored

    @property
    def _window(self) -> int:
        return self.engine.model.window_tokens

    def _view(self, cutter: TurnCutter, messages: list[Any], asked: JsonObject) -> View | None:
        answer = asked["answer"]
        full = cutter.turn(messages[: answer + 1])
        if full is None:
            return None
        paths = {FULL: Path(full.layout.tokens)}
        for name, policy in self.policies.items():
            paths[name] = compile_ops(full.layout, rules=policy.bound(self._window)).path
        for name, prompt in asked["prompts"].items():
            turn = cutter.turn([*messages_from_openai(prompt, lenient=True), messages[answer]])
            if turn is None or (turn.said, turn.after) != (full.said, full.after):
                return None
            paths[name] = Path(turn.layout.tokens)
        return View(full, paths) if all(len(path) <= self._window for path in paths.values()) else None

    def _run(self, views: list[View]) -> JsonObject:
        longest = max(sum(len(path) for path in view.paths.values()) for view in views)
        reader = LogitsReader(self.engine, longest + 2 * PIECE_TOKENS)
        sums = {name: Sum() for name in views[0].paths}
        for view in views:
            score_answer(reader, view.turn, view.paths, sums)
            self.tell({"scored": view.turn.index})
        reader.forget()
        return {name: found.figures() for name, found in sums.items()}


def main(argv: list[str] | None = None) -> int:
    """Measure as the file says; return the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    return tell_result(lambda: measure(FilePath(arguments[0])))


def measure(file: FilePath) -> JsonObject:
    """Return the figures of the runs in a file. Raises AkashicError."""
    try:
        asked = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise TranscriptError(f"reading what to measure from {file}: {error}", hint="name a JSON file") from error
    settings = load(find_paths().config_file)
    policies = {name: load_policy(spec) for name, spec in asked["policies"].items()}
    with closing(open_engine(known_model(asked["model"], settings), settings)) as engine:
        tell({"model": engine.model.name, "answers": sum(len(run["turns"]) for run in asked["runs"])})
        scorer = ViewScorer(engine, policies, tell)
        runs = scorer.score(asked["runs"])
        return {"model": engine.model.name, "left_out": scorer.left_out, "runs": runs}


if __name__ == "__main__":
    sys.exit(main())
