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
from typing import TYPE_CHECKING, Any

from akashic_daemon.config import load
from akashic_daemon.errors import BadRequest, ConfigError, StoreUnwritable
from akashic_daemon.evolve.drafts import Draft
from akashic_daemon.evolve.history import History, history_of
from akashic_daemon.evolve.judge import Prices
from akashic_daemon.evolve.proposer import ModelProposer
from akashic_daemon.evolve.report import (
    BASELINE,
    COMPANION,
    Scores,
    candidates,
    choose,
    held_out,
    policy_file,
    readable,
    verdict,
)
from akashic_daemon.evolve.search import Search
from akashic_daemon.evolve.split import split
from akashic_daemon.fidelity.turns import Run, read_runs
from akashic_daemon.paths import find_paths
from akashic_daemon.process.measuring import tell, tell_result
from akashic_daemon.program.policy import parse_policy

if TYPE_CHECKING:
    from akashic_daemon.fidelity.policies import PolicyScorer


@dataclass(frozen=True, slots=True)
class Options:
    """What is asked for. quality_turns: answers of a run that a model reads, 0 for none. state: where it goes on from.

    generations: most of them, None for as many as evaluations and minutes allow.
    """

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
    generations: int | None = None


def main(argv: list[str] | None = None) -> int:
    """Evolve as the options say; return the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    return tell_result(lambda: evolve(Options(**json.loads(arguments[0]))))


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
        options.generations,
    )
    _search(search, options, histories, deadline_s)
    for problem in proposer.problems if proposer is not None else ():
        tell({"note": problem})
    return _result(options, search, parts, histories, deadline_s)


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
        known, kept = state["inputs"], state["search"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{doing}: {error}", hint="begin anew with --fresh") from error
    if known != json.loads(json.dumps(inputs)):
        raise ConfigError(
            f"{doing}: it had other runs, prices or another window", hint="name the same, or begin anew with --fresh"
        )
    search.restore(kept)


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
    options: Options,
    search: Search,
    parts: dict[str, list[Run]],
    histories: dict[str, list[History]],
    deadline_s: float,
) -> dict[str, Any]:
    drafts = candidates(search)
    drafts = {name: draft for name, draft in drafts.items() if draft.source in search.judged}
    if options.quality_turns:
        model, chosen, held = _chosen_by_model(options, search, drafts, parts, deadline_s)
    else:
        model, chosen, held = None, choose(search, drafts, None), None
    rows = held_out(drafts, histories["held_out"], options.window_tokens, search.prices, options.seed, held)
    row = next(row for row in rows if row["policy"] == chosen)
    told = verdict(row)
    again = _again(options, search)
    evidence = [
        f"Found by `akashic policy evolve {again}`: {len(search.judged)} policies, {search.generation} generations.",
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
        "again": again,
        "refused": len(search.refused),
        "watched": search.watched,
        "front": [
            {"source": j.draft.source, "origin": j.draft.origin, "train": j.train, "watch": j.watch}
            for j in search.front
        ],
        "runs": {name: [run.name for run in runs] for name, runs in parts.items()},
    }


def _again(options: Options, search: Search) -> str:
    """Return the options that search the same again, however long it takes and whatever ended it."""
    return f"--seed {options.seed} --evaluations {options.evaluations} --generations {search.generation} --fresh"


def _chosen_by_model(
    options: Options, search: Search, drafts: dict[str, Draft], parts: dict[str, list[Run]], deadline_s: float
) -> tuple[str | None, str, Scores | None]:
    """Return the model's name, the policy that it chose, and its figures of that one on the held-out runs.

    Evolved candidates and two hand-made ones are read on the runs that are chosen by, on the others just the chosen one and
    what it is compared with: reading is what takes the time. Half of it is kept for the others, a quarter if the first run
    takes so long; what there is no time for is left out and told of.
    """
    from akashic_daemon.fidelity.opening import known_model, open_engine
    from akashic_daemon.fidelity.policies import PolicyScorer

    settings = load(find_paths().config_file)
    read = readable(drafts)
    policies = {name: parse_policy(drafts[name].source) for name in read}
    with closing(open_engine(known_model(options.model, settings), settings)) as engine:
        tell({"scoring": engine.model.name, "of": len(parts["watch"]) + len(parts["held_out"])})
        scorer = PolicyScorer(engine, policies, options.quality_turns, tell)
        now_s = time.monotonic()
        watched = _scored(scorer, parts["watch"], (now_s + deadline_s) / 2, first_s=(now_s + 3 * deadline_s) / 4)
        if not watched:
            tell({"note": "the time ended before a model had read any run: chosen by needed words"})
            return None, choose(search, drafts, None), None
        chosen = choose(search, {name: drafts[name] for name in (*read, "none") if name in drafts}, watched)
        scorer.policies = {name: policies[name] for name in policies if name in {chosen, BASELINE, COMPANION}}
        held = _scored(scorer, parts["held_out"], deadline_s, first_s=deadline_s)
    if len(watched) < len(parts["watch"]):
        tell(
            {
                "note": f"a model chose by {len(watched)} of {len(parts['watch'])} runs: the time ended, --minutes gives more"
            }
        )
    if len(held) < len(parts["held_out"]):
        tell(
            {
                "note": f"a model read {len(held)} of {len(parts['held_out'])} held-out runs before the time ended, --minutes gives more"
            }
        )
    return engine.model.name, chosen, held or None


def _scored(scorer: PolicyScorer, runs: list[Run], deadline_s: float, *, first_s: float) -> Scores:
    """Return a model's figures of the runs that there is time for, short ones first; of the last one perhaps few answers.

    The first run may take until first_s: without any there is nothing to choose by.
    """
    found: dict[str, Any] = {}
    scorer.is_over = lambda: time.monotonic() > (deadline_s if found else first_s)
    for run in sorted(runs, key=lambda run: sum(len(m.content) for m in run.messages)):
        if scorer.is_over():
            break
        try:
            found |= _with_none(scorer.score([run])["runs"])
        except BadRequest:
            tell({"note": f"{run.name}: no answer fits the model's window"})
    return found


def _with_none(runs: Scores) -> Scores:
    """Return the figures with `none`, which sees the full history."""
    return {name: {**figures, "none": figures["full"]} for name, figures in runs.items()}


if __name__ == "__main__":
    sys.exit(main())
