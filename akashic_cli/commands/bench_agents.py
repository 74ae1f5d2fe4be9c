"""`akashic bench agents`: recorded agents as a load, under ways to keep their histories short."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from akashic_cli.options import HomeOption, JsonOption

if TYPE_CHECKING:
    from akashic_cli.bench.agents.sweep import Plan, Sweep
    from akashic_cli.bench.agents.workload import Episode
    from akashic_cli.bench.request import Target


def agents(
    transcripts: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[TRANSCRIPT]", help="Recorded runs, JSON with messages; made-up ones if absent."),
    ] = None,
    policies: Annotated[
        str, typer.Option("--policies", metavar="NAME,...", help="Of none, drop, prune, summarise.")
    ] = "none,drop,prune,summarise",
    concurrency: Annotated[
        str, typer.Option("--concurrency", metavar="N,...", help="Agents at the same time; each is measured.")
    ] = "1,2,4",
    rates: Annotated[
        bool, typer.Option("--rates", help="Look for the highest rate of arrivals that is sustained.")
    ] = False,
    slo: Annotated[
        str, typer.Option("--slo", metavar="FIRST,BETWEEN", help="Seconds that 95 % of requests keep to.")
    ] = "2,0.2",
    episodes: Annotated[
        int, typer.Option("--episodes", min=1, help="Runs of each level; they are repeated if fewer.")
    ] = 4,
    max_turns: Annotated[int | None, typer.Option("--max-turns", min=1, help="Turns of each run.")] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Longest answer; else as recorded.")] = 32,
    keep: Annotated[int, typer.Option("--keep", min=0, help="Tool results that drop and prune keep.")] = 12,
    threshold: Annotated[
        int, typer.Option("--threshold", min=64, help="Prompt tokens at which summarise does.")
    ] = 4096,
    summary_tokens: Annotated[int, typer.Option("--summary-tokens", min=1, help="Longest summary.")] = 256,
    prices: Annotated[
        str, typer.Option("--prices", metavar="COMPUTED,CACHED,OUTPUT", help="Of a token of each sort.")
    ] = "1,0.1,5",
    tool_latency: Annotated[
        float, typer.Option("--tool-latency", metavar="S", min=0, help="Where a run has no times (event_time_s).")
    ] = 1.0,
    most_latency: Annotated[float, typer.Option("--most-latency", metavar="S", min=0, help="Longest wait.")] = 60.0,
    speedup: Annotated[float, typer.Option("--speedup", min=0.001, help="Divides all waits.")] = 1.0,
    memory: Annotated[bool, typer.Option("--memory", help="With long-term memory in each request.")] = False,
    seed: Annotated[int, typer.Option("--seed", help="Decides when episodes arrive.")] = 1,
    base_url: Annotated[
        str | None, typer.Option("--base-url", metavar="URL", help="Another server; else a daemon of its own.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", metavar="FILE", help="A model's file; another server's by its name.")
    ] = None,
    work_dir: Annotated[
        Path | None, typer.Option("--work-dir", metavar="DIR", help="On whose disk the measured daemon's home lies.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write everything, also when cut short.")
    ] = None,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Play recorded agents, their tools' times included, and compare ways to keep histories short.

    Throughput, times and cost at each number of agents, and with --rates how many episodes a minute keep to --slo. Summaries
    are real requests: their tokens and their time are charged to the policy that wants them.
    """
    from akashic_cli.bench.agents.figures import Objective, Price
    from akashic_cli.bench.agents.strategies import Setting, parse_names
    from akashic_cli.bench.agents.sweep import Plan
    from akashic_cli.bench.agents.workload import Waits, episode_of
    from akashic_cli.bench.synthetic import make_run
    from akashic_cli.bench.transcripts import read_run
    from akashic_daemon.evolve.judge import Prices

    runs = [read_run(path) for path in transcripts or ()] or [make_run(n, 1500, 8) for n in range(episodes)]
    waits = Waits(tool_latency, most_latency, speedup)
    made = [episode_of(run, waits, most_turns=max_turns, most_answer_tokens=max_tokens) for run in runs]
    found = Prices.parse(prices)
    plan = Plan(
        parse_names(policies),
        _levels(concurrency),
        rates,
        Setting(keep, threshold, summary_tokens=summary_tokens, memory=memory),
        Price(found.computed, found.cached, found.output),
        Objective.parse(slo),
        seed,
        base_url is None,
    )
    played = [made[i % len(made)] for i in range(episodes)]
    _measure(plan, played, base_url, model, work_dir, out, as_json=as_json)


def _levels(text: str) -> list[int]:
    from akashic_daemon.errors import UsageError

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 0 < int(part) <= 256 for part in parts):
        raise UsageError(
            f"reading --concurrency {text!r}: it is no list of numbers from 1 to 256", hint="e.g. 1,2,4,8,16"
        )
    return [int(part) for part in parts]


def _measure(
    plan: Plan,
    episodes: list[Episode],
    base_url: str | None,
    model: str | None,
    work_dir: Path | None,
    out: Path | None,
    *,
    as_json: bool,
) -> None:
    from akashic_cli.bench.own_daemon import OwnDaemon
    from akashic_cli.bench.request import Target

    if base_url is not None:
        target = Target(base_url, None, model or "default", None, 1, {})
        _play(plan, episodes, target, out, as_json=as_json)
        return
    with OwnDaemon(None if work_dir is None else work_dir.absolute(), model=model) as daemon:
        daemon.start({})
        _play(plan, episodes, daemon.target(named_sessions=True), out, as_json=as_json)


def _play(plan: Plan, episodes: list[Episode], target: Target, out: Path | None, *, as_json: bool) -> None:
    """Play with a progress bar on stderr, and show what was measured, also when something ended it early."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from akashic_cli.bench.agents.sweep import Sweep
    from akashic_cli.render.output import err

    console = err()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("requests"))
    bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal)
    known = sum(len(episode.turns) for episode in episodes) * len(plan.policies) * len(plan.concurrency)
    # How many rates are tried isn't known before; then the bar only counts.
    task = bar.add_task("starting", total=None if plan.rates else known)
    sweep = Sweep(plan, episodes, target, lambda what, done: bar.update(task, description=what, advance=done))
    try:
        with bar:
            sweep.run()
    finally:
        if sweep.levels:
            _show(sweep, out, as_json=as_json)


def _show(sweep: Sweep, out: Path | None, *, as_json: bool) -> None:
    import json

    from akashic_cli.bench.agents.figures import COLUMNS, table_rows
    from akashic_cli.render.files import write_atomically
    from akashic_cli.render.output import print_json, print_table, say

    result: dict[str, Any] = sweep.report()
    if out is not None:
        write_atomically(out, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    if as_json:
        print_json(result)
    else:
        print_table(COLUMNS, table_rows(result), right=range(1, len(COLUMNS)))
    for row in result["over_summarise"]:
        parts = [f"{key} {row[key]:.2f} x" for key in ("cost", "output", "latency_p95") if row[key] is not None]
        say(f"{row['policy']} against summarise, {row['level']} agents: {', '.join(parts)} (latency: how much shorter)")
    for policy, rate in result["sustainable_per_min"].items():
        say(
            f"{policy}: " + ("no rate was sustained" if rate is None else f"{rate:.2f} episodes a minute are sustained")
        )
    for text in dict.fromkeys(text for row in result["levels"] for text in row["broken"]):
        say(f"warning: {text}")
