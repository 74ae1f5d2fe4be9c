"""The suites of `bench run`: what each measures, what it needs, how long it takes, and its figures in one form.

A suite that asks for answers over HTTP starts a daemon of its own, so that yours isn't touched; peers get the same requests.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from akashic_cli.bench.own_daemon import OwnDaemon
from akashic_cli.bench.peers import Peer
from akashic_cli.bench.prompts import salted
from akashic_cli.bench.record import Measure
from akashic_cli.bench.replay import Player, prepare, replay
from akashic_cli.bench.request import Target
from akashic_cli.bench.summary import percentile, report
from akashic_cli.bench.synthetic import GROWING_SHARE_BEFORE, make_run
from akashic_cli.bench.transcripts import Edit, Run, read_run
from akashic_daemon.errors import AkashicError

if TYPE_CHECKING:
    from akashic_cli.bench.agents.sweep import Plan as AgentPlan
    from akashic_cli.bench.agents.workload import Episode

Progress = Callable[[float], None]
"""Takes which share of a suite is done."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What suites measure with. `made_up`: without transcripts, runs that nobody recorded are played."""

    is_full: bool = False
    transcripts: tuple[Path, ...] = ()
    conversations: tuple[Path, ...] = ()
    model: str | None = None
    folder: Path | None = None
    asked_peers: tuple[Peer, ...] = ()
    peers: dict[str, Target] = field(default_factory=dict)
    """Where requests to the asked peers go, once they are served."""
    command: tuple[str, ...] | None = None
    """What serves, instead of the daemon that is installed."""

    def runs(self, count: int, tokens: int, answers: int, **made: float) -> list[Run]:
        """Return recorded runs, or made-up ones, made as `make_run` does."""
        if self.transcripts:
            return [read_run(path) for path in self.transcripts[:count]]
        return [make_run(number, tokens, answers, **made) for number in range(count)]


Found = tuple[list[Measure], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Suite:
    """One suite. seconds: about how long it takes, quick and full, on two cores. needs: why it can't run, or nothing."""

    name: str
    about: str
    seconds: tuple[float, float]
    run: Callable[[Inputs, Target | None, Progress], Found]
    needs: Callable[[Inputs], str] = lambda _: ""
    takes_peers: bool = False


def _replay(inputs: Inputs, peer: Target | None, progress: Progress) -> Found:
    turns, count = (None, 11) if inputs.is_full else (6, 3)
    runs = inputs.runs(count, 3000 if inputs.is_full else 1200, 8)
    return _played(inputs, peer, progress, _own(runs, "replay"), turns, parallel=False)


def _serve(inputs: Inputs, peer: Target | None, progress: Progress) -> Found:
    turns, count = (8, 8) if inputs.is_full else (4, 4)
    runs = inputs.runs(count, 2400 if inputs.is_full else 900, 8)
    return _played(inputs, peer, progress, _own(runs, "serve"), turns, parallel=True)


def _own(runs: Sequence[Run], suite: str) -> list[Run]:
    """Return runs that nobody has seen before: a peer keeps what other suites and earlier measurements sent it."""
    mark = f"{suite} {secrets.token_hex(4)}"
    return [replace(run, messages=salted(run.messages, f"{mark} {number}")) for number, run in enumerate(runs)]


def _played(
    inputs: Inputs, peer: Target | None, progress: Progress, runs: Sequence[Run], turns: int | None, *, parallel: bool
) -> Found:
    players = prepare(runs, Edit("none"), turns)
    if peer is not None:
        wall_s = _play(players, peer, progress, parallel=parallel)
    else:
        with OwnDaemon(inputs.folder, model=inputs.model, command=inputs.command) as daemon:
            daemon.start({})
            wall_s = _play(players, daemon.target(named_sessions=False), progress, parallel=parallel)
    stopped = [player for player in players if player.stopped is not None]
    if stopped and not any(player.turns for player in players):
        assert stopped[0].stopped is not None
        raise stopped[0].stopped
    setup = {"edit": "none", "agents": len(players) if parallel else 1, "parallel": parallel}
    return _replay_measures(players, wall_s), report(players, wall_s=wall_s, setup=setup)


def _play(players: Sequence[Player], target: Target, progress: Progress, *, parallel: bool) -> float:
    total, done = max(1, sum(len(player.requests) for player in players)), [0]

    def played() -> None:
        done[0] += 1
        progress(done[0] / total)

    started_s = time.perf_counter()
    replay(players, target, agents=len(players) if parallel else 1, parallel=parallel, played=played)
    return time.perf_counter() - started_s


def _replay_measures(players: Sequence[Player], wall_s: float) -> list[Measure]:
    turns = [turn for player in players for turn in player.turns]
    later = tuple(t.measured.first_token_s for t in turns if t.index) or tuple(t.measured.first_token_s for t in turns)
    written = sum(t.measured.completion_tokens for t in turns)
    computed = tuple(float(t.measured.computed_tokens) for t in turns)
    unfinished = sum(player.stopped is not None for player in players)
    new = sum(t.unique_new_tokens for t in turns)
    ratio = [Measure("tokens computed over those of new text", sum(computed) / new, "x", "lower")] if new else []
    return [
        Measure("first token, median", median(later), "s", "lower", later),
        Measure("first token, p95", percentile(later, 0.95), "s", "lower"),
        Measure("tokens computed", sum(computed), "tokens", "lower", computed),
        *ratio,
        Measure("tokens cached", float(sum(t.measured.cached_tokens for t in turns)), "tokens", "higher"),
        Measure("output", written / wall_s, "tok/s", "higher"),
        Measure("runs that broke off", float(unfinished), "runs", "lower"),
    ]


def _decode(inputs: Inputs, _peer: Target | None, progress: Progress) -> Found:
    from akashic_cli.bench.planning import GOAL, validate

    seen = {"done": 0, "points": 1}

    def told(news: dict[str, Any]) -> None:
        seen["points"] = news.get("points", seen["points"])
        seen["done"] += "point" in news
        progress(seen["done"] / seen["points"])

    result = validate(inputs.model, told, full=inputs.is_full, keep=False)
    measures = [Measure(row["what"], row["measured"], "tok/s", "higher") for row in result["here"]]
    if result["worst_held_out"] is not None:
        measures.append(Measure("planner's worst error", result["worst_held_out"], "of the speed", "lower", goal=GOAL))
    return measures, result


def _torch(what: str) -> Callable[[Inputs, Target | None, Progress], Found]:
    def run(inputs: Inputs, _peer: Target | None, progress: Progress) -> Found:
        from akashic_cli.bench import torch_suites

        seen = [0]

        def told(news: dict[str, Any]) -> None:
            seen[0] += "row" in news
            progress(1 - 0.8 ** seen[0])

        model = inputs.model if what == "decode" else None
        result = torch_suites.measure(what, model, told, full=inputs.is_full)
        return torch_suites.measures(result), result

    return run


def _needs_torch(_inputs: Inputs) -> str:
    from importlib.util import find_spec

    return "" if find_spec("torch") is not None else "it needs torch: `./install.sh --with gpu`"


def _fidelity(inputs: Inputs, _peer: Target | None, progress: Progress) -> Found:
    from tempfile import TemporaryDirectory

    from akashic_cli.bench.fidelity import measure

    seen = {"done": 0, "turns": 1}

    def told(news: dict[str, Any]) -> None:
        seen["turns"] = news.get("turns", seen["turns"])
        seen["done"] += "turn" in news
        progress(seen["done"] / seen["turns"])

    keeps = [12, 4, 1] if inputs.is_full else [2]
    with TemporaryDirectory(dir=inputs.folder) as folder:
        files = list(inputs.transcripts[: 11 if inputs.is_full else 1]) or _written(inputs, Path(folder))
        result = measure(files, keeps, inputs.model, told)
    measures = []
    full = next(row["nll"] for row in result["summary"] if row["variant"] == "full")
    for row in result["summary"]:
        per_run = tuple(run["variants"][row["variant"]]["nll"] for run in result["runs"])
        measures.append(Measure(f"NLL, {row['variant']}", row["nll"], "nats a token", "lower", per_run))
        if row["variant"] != "full":
            over = row["nll"] - full
            measures.append(Measure(f"NLL, {row['variant']}, more than full", over, "nats a token", "lower"))
        measures.append(Measure(f"tokens computed, {row['variant']}", float(row["computed_tokens"]), "tokens", "lower"))
    return measures, result


def _written(inputs: Inputs, folder: Path) -> list[Path]:
    """Write made-up runs where the measuring process can read them."""
    import json

    files = []
    for number in range(3 if inputs.is_full else 1):
        run = make_run(number, 1600 if inputs.is_full else 500, 6)
        files.append(folder / f"{run.name}.json")
        files[-1].write_text(json.dumps({"messages": run.messages}), "utf-8")
    return files


def _tiers(inputs: Inputs, _peer: Target | None, progress: Progress) -> Found:
    from akashic_cli.bench import tier_samples
    from akashic_cli.bench.tiers import SCENARIOS, Plan
    from akashic_cli.bench.tiers import Suite as TierSuite

    only = SCENARIOS if inputs.is_full else ("cold", "ram", "resident", "ssd", "restart")
    plan = Plan(only, model=inputs.model, folder=inputs.folder, command=inputs.command)
    plan = plan if inputs.is_full else replace(plan, repeat=2, tokens=1500)
    done = [0]

    def told(_scenario: str, count: int) -> None:
        done[0] += count
        progress(done[0] / plan.requests)

    suite, started_s = TierSuite(plan, told), time.perf_counter()
    suite.run()
    result = tier_samples.report(suite.result, plan.setup(), time.perf_counter() - started_s)
    measures = []
    cold_s = next(row["first_token_s"] for row in result["summary"] if row["scenario"] == "cold")
    for row in result["summary"]:
        mine = [s for s in suite.result.samples if s.scenario == row["scenario"]]
        samples = tuple(s.measured.first_token_s for s in mine)
        measures.append(Measure(f"first token, {row['scenario']}", row["first_token_s"], "s", "lower", samples))
        if row["scenario"] != "cold":
            over = row["first_token_s"] / cold_s
            measures.append(Measure(f"first token, {row['scenario']} over cold", over, "x", "lower"))
        measures.append(
            Measure(f"tokens computed, {row['scenario']}", float(row["computed_tokens"]), "tokens", "lower")
        )
    return measures, result


def _agents(inputs: Inputs, peer: Target | None, progress: Progress) -> Found:
    from akashic_cli.bench.agents.measures import measures
    from akashic_cli.bench.agents.strategies import needs_ours
    from akashic_cli.bench.agents.sweep import Sweep

    plan, played = _agent_plan(inputs)
    if peer is not None:
        able = [name for name in plan.policies if not needs_ours(name, plan.setting)]
        plan = replace(plan, policies=able, is_ours=False)
    total, done = sum(len(e.turns) for e in played) * len(plan.policies) * len(plan.concurrency), [0]

    def told(_what: str, count: int) -> None:
        done[0] += count
        progress(done[0] / total * (0.5 if plan.rates else 1.0))

    def measured(target: Target) -> Found:
        sweep = Sweep(plan, played, target, told)
        sweep.run()
        if all(len(row["broken"]) == row["episodes"] for row in sweep.levels):
            raise AkashicError(f"playing agents: every episode broke off: {sweep.levels[0]['broken'][0]}")
        result = sweep.report()
        return measures(result, plan, played), result

    if peer is not None:
        return measured(peer)
    with OwnDaemon(inputs.folder, model=inputs.model, command=inputs.command) as daemon:
        daemon.start({})
        return measured(daemon.target(named_sessions=True))


def _agent_plan(inputs: Inputs) -> tuple[AgentPlan, list[Episode]]:
    from akashic_cli.bench.agents.figures import Objective, Price
    from akashic_cli.bench.agents.strategies import NAMES, Setting
    from akashic_cli.bench.agents.sweep import Plan
    from akashic_cli.bench.agents.workload import Waits, episode_of

    full = inputs.is_full
    waits = Waits(1.0, 20.0) if full else Waits(0.2, 0.2)
    count, tokens, answers = (8, 4000, 16) if full else (3, 1000, 6)
    runs = inputs.runs(count, tokens, answers, share_before=GROWING_SHARE_BEFORE)
    played = [
        episode_of(run, waits, most_turns=None if full else 6, most_answer_tokens=32 if full else 8) for run in runs
    ]
    # Near the most that the drop leaves of these runs, so that both keep to about the same bound.
    setting = Setting(4, 2304, summary_tokens=256) if full else Setting(2, 768, summary_tokens=32)
    policies = NAMES if full else ("none", "drop", "summarise")
    levels = (1, 2, 4, 8, 16) if full else (2,)
    return Plan(policies, levels, full, setting, Price(1.0, 0.1, 5.0), Objective()), played


def _memory(inputs: Inputs, _peer: Target | None, progress: Progress) -> Found:
    from akashic_cli.bench.memory import measure

    result = measure(inputs.conversations)
    progress(1.0)
    suite = result["suites"]["retrieval"]
    measures = [
        Measure(f"recall of {count}, {row['method']}", share, "of the evidence", "higher")
        for row in suite["rows"]
        for count, share in row["recall"].items()
        if share is not None
    ]
    measures.append(Measure("search, p50", suite["search_p50_ms"], "ms", "lower"))
    return measures, result


def _needs_conversations(inputs: Inputs) -> str:
    return "" if inputs.conversations else "it needs --conversations FILE (LoCoMo's shape)"


SUITES = {
    suite.name: suite
    for suite in (
        Suite("decode", "decode and prefill of the engine, and the planner's error", (60, 150), _decode),
        Suite("kernels", "the torch engine's kernels against their ceilings", (5, 30), _torch("kernels"), _needs_torch),
        Suite("torch-decode", "decoding on the torch engine", (15, 120), _torch("decode"), _needs_torch),
        Suite("replay", "agents one after another: first token, tokens computed", (45, 900), _replay, takes_peers=True),
        Suite("serve", "agents at the same time: throughput, first token", (45, 600), _serve, takes_peers=True),
        Suite("agents", "policies under a load of agents: cost, latency, rate", (110, 3600), _agents, takes_peers=True),
        Suite("fidelity", "what shortened histories cost in likelihood", (25, 3600), _fidelity),
        Suite("tiers", "a session's next turn by where its KV is", (65, 900), _tiers),
        Suite("memory", "which share of a question's evidence memory finds", (60, 120), _memory, _needs_conversations),
    )
}


def reason_of(error: Exception) -> str:
    """Return why a suite failed, in words that stand in a report."""
    return str(error) if isinstance(error, AkashicError) else f"{type(error).__name__}: {error}"
