"""`python -m akashic_daemon.evolve OPTIONS-AS-JSON`: evolve policies, and tell on stdout, a JSON object a line.

Lines: {"runs"} at the start, {"generation"} after each, {"note"} and {"scored"} meanwhile, {"result"} or {"error"} at the end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from akashic_daemon.config import load
from akashic_daemon.errors import AkashicError, ConfigError, StoreUnwritable, TranscriptError
from akashic_daemon.evolve.history import History, history_of
from akashic_daemon.evolve.judge import Prices
from akashic_daemon.evolve.proposer import ModelProposer
from akashic_daemon.evolve.report import Scores, candidates, choose, held_out, policy_file, verdict
from akashic_daemon.evolve.search import Search
from akashic_daemon.evolve.split import split
from akashic_daemon.fidelity.turns import Run, read_runs
from akashic_daemon.paths import find_paths
from akashic_daemon.program.policy import parse_policy

_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Options:
    """What is asked for. quality_turns: answers of a run that a model reads, 0 for none. state: where it goes on from."""

    transcripts: list[str]
    held_out: list[str]
    window_tokens: int
    prices: list[float]
    seed: int
    evaluations: int
    minutes: float
    quality_turns: int
    model: str | None
    propose_url: str | None
    propose_model: str
    name: str
    state: str | None
    key_file: str | None = None


def main(argv: list[str] | None = None) -> int:
    """Evolve as the options say; return the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        tell({"result": evolve(Options(**json.loads(arguments[0])))})
    except AkashicError as error:
        tell({"error": error.to_wire()})
        return error.exit_code
    except KeyboardInterrupt:  # who started this process has been told too, and says so
        return _INTERRUPTED
    return 0


def tell(news: dict[str, Any]) -> None:
    """Print one line for whoever started this process."""
    print(json.dumps(news, ensure_ascii=False), flush=True)


def evolve(options: Options) -> dict[str, Any]:
    """Return the result. Raises AkashicError."""
    deadline_s = time.monotonic() + options.minutes * 60
    parts = split(_read(options.transcripts), _read(options.held_out), options.seed)
    histories = {name: [history_of(run.name, run.messages) for run in runs] for name, runs in parts.items()}
    tell({"runs": {name: [run.name for run in runs] for name, runs in parts.items()}})
    prices = Prices(*options.prices)
    proposer = None
    if options.propose_url is not None:
        proposer = ModelProposer(options.propose_url, options.propose_model, _key(options.key_file))
    search = Search(
        histories["train"],
        histories["watch"],
        options.window_tokens,
        prices,
        options.seed,
        options.evaluations,
        proposer,
    )
    _search(search, options, histories, deadline_s)
    for problem in proposer.problems if proposer is not None else ():
        tell({"note": problem})
    return _result(options, search, parts, histories)


def _key(file: str | None) -> str | None:
    """Return the bearer token in a file: on a command line anybody could read it."""
    if file is None:
        return None
    try:
        return Path(file).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"reading the key for the proposing model from {file}: {error}", hint="name a readable file"
        ) from error


def _read(files: list[str]) -> list[Run]:
    return [run for file in files for run in read_runs(Path(file)) if run.answers]


def _search(search: Search, options: Options, histories: dict[str, list[History]], deadline_s: float) -> None:
    """Run the search; its state is kept after each generation, and half of the time is left for a model."""
    inputs = {
        "runs": {name: [[run.name, run.tokens] for run in runs] for name, runs in histories.items()},
        "window_tokens": options.window_tokens,
        "prices": options.prices,
    }
    file = None if options.state is None else Path(options.state)
    if file is not None and file.exists():
        _restore(search, file, inputs)
        tell({"note": f"going on after generation {search.generation} of {file}"})
    reserve_s = options.minutes * 30 if options.quality_turns else 0.0
    for generation in search.run():
        best = search.front[0]
        tell(
            {
                "generation": generation,
                "evaluations": len(search.judged),
                "most": search.evaluations,
                "front": len(search.front),
                "cheapest": best.train[0],
                "watched": search.watched[-1],
            }
        )
        if not search.stopped and time.monotonic() > deadline_s - reserve_s:
            search.stopped = "time"
        if file is not None:
            _keep(file, {"inputs": inputs, "search": search.state()})


def _restore(search: Search, file: Path, inputs: dict[str, Any]) -> None:
    doing = f"going on with the evolution of {file}"
    try:
        state = json.loads(file.read_text("utf-8"))
        known = state["inputs"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{doing}: {error}", hint="begin anew with --fresh") from error
    if known != json.loads(json.dumps(inputs)):
        raise ConfigError(
            f"{doing}: it had other runs, prices or another window", hint="name the same, or begin anew with --fresh"
        )
    search.restore(state["search"])


def _keep(file: Path, state: dict[str, Any]) -> None:
    temporary = file.with_suffix(f".{os.getpid()}")
    try:
        temporary.write_text(json.dumps(state), "utf-8")
        temporary.replace(file)
    except OSError as error:
        raise StoreUnwritable(
            f"keeping the evolution's state in {file}: {error.strerror or error}", hint="free space"
        ) from error


def _result(
    options: Options, search: Search, parts: dict[str, list[Run]], histories: dict[str, list[History]]
) -> dict[str, Any]:
    drafts = candidates(search)
    drafts = {name: draft for name, draft in drafts.items() if draft.source in search.judged}
    chosen_by: Scores | None = None
    held: Scores | None = None
    model = None
    if options.quality_turns:
        model, chosen_by, held = _scores(options, drafts, parts)
    chosen = choose(search, drafts, chosen_by)
    rows = held_out(drafts, histories["held_out"], options.window_tokens, search.prices, options.seed, held)
    row = next(row for row in rows if row["policy"] == chosen)
    told = verdict(row)
    evidence = [
        f"Found by `akashic policy evolve --seed {options.seed}`: {len(search.judged)} policies, {search.generation} generations.",
        f"Chosen on {len(parts['train'])} and {len(parts['watch'])} runs, judged on {len(parts['held_out'])} others.",
        f"{told}.",
    ]
    return {
        "chosen": chosen,
        "verdict": told,
        "policy": policy_file(options.name, row, evidence),
        "held_out": rows,
        "model": model,
        "seed": options.seed,
        "window_tokens": options.window_tokens,
        "prices": options.prices,
        "evaluations": len(search.judged),
        "generations": search.generation,
        "stopped": search.stopped,
        "refused": len(search.refused),
        "watched": search.watched,
        "front": [
            {"source": j.draft.source, "origin": j.draft.origin, "train": j.train, "watch": j.watch}
            for j in search.front
        ],
        "runs": {name: [run.name for run in runs] for name, runs in parts.items()},
    }


def _scores(options: Options, drafts: dict[str, Any], parts: dict[str, list[Run]]) -> tuple[str, Scores, Scores]:
    """Return the model's name and its figures on the runs that are chosen by and on the held-out ones."""
    from akashic_daemon.fidelity.opening import known_model, open_engine
    from akashic_daemon.fidelity.policies import PolicyScorer

    settings = load(find_paths().config_file)
    policies = {name: parse_policy(draft.source) for name, draft in drafts.items() if name != "none"}
    with closing(open_engine(known_model(options.model, settings), settings)) as engine:
        scorer = PolicyScorer(engine, policies, options.quality_turns, tell)
        tell({"scoring": engine.model.name, "of": len(parts["watch"]) + len(parts["held_out"])})
        found = [_with_none(scorer.score(parts[name])["runs"]) for name in ("watch", "held_out")]
    if not found[0] or not found[1]:
        raise TranscriptError(
            "judging policies by a model: no run fits its window", hint="--quality-turns 0 does without"
        )
    return engine.model.name, found[0], found[1]


def _with_none(runs: Scores) -> Scores:
    """Return the figures with `none`, which sees the full history."""
    return {name: {**figures, "none": figures["full"]} for name, figures in runs.items()}


if __name__ == "__main__":
    sys.exit(main())
