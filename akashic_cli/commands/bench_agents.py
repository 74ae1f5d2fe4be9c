"""`akashic bench agents`: recorded agents as a load, under ways to keep their histories short."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from akashic_cli.commands.bench_options import (
    PEER_TIMEOUT_S,
    MeasuredModelOption,
    PeerModelOption,
    PeersOption,
    PeerTimeoutOption,
    WorkDirOption,
    WrittenOption,
)
from akashic_cli.options import HomeOption, JsonOption

if TYPE_CHECKING:
    from akashic_cli.bench.agents.measurement import Measurement


def agents(
    transcripts: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[TRANSCRIPT]", help="Recorded runs, JSON with messages; made-up ones if absent."),
    ] = None,
    policies: Annotated[
        str, typer.Option("--policies", metavar="NAME[:N],...", help="none, drop, prune, summarise, rewrite.")
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
    gate: Annotated[
        int, typer.Option("--gate", min=64, help="New tokens after which rewrite writes its memory anew.")
    ] = 1024,
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
    nll: Annotated[
        int, typer.Option("--nll", metavar="TURNS", min=0, help="Answers of a run whose likelihood is measured.")
    ] = 0,
    seed: Annotated[int, typer.Option("--seed", help="Decides when episodes arrive.")] = 1,
    base_url: Annotated[
        str | None, typer.Option("--base-url", metavar="URL", help="Another server; else a daemon of its own.")
    ] = None,
    peer: PeersOption = None,
    peer_model: PeerModelOption = "default",
    peer_timeout: PeerTimeoutOption = PEER_TIMEOUT_S,
    model: MeasuredModelOption = None,
    work_dir: WorkDirOption = None,
    out: WrittenOption = None,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Play recorded agents, their tools' times included, and compare ways to keep histories short.

    Throughput, times and cost at each number of agents, with --rates how many episodes a minute keep to --slo, and with --nll
    how likely the recorded answers are after what each policy leaves. Summaries are real requests: their tokens and their
    time are charged to the policy that wants them. drop:4, prune:4: tool results that stay; summarise:2048, rewrite:1024:
    tokens; +memory behind a name turns on long-term memory.
    """
    from akashic_cli.bench.agents.figures import Objective, Price
    from akashic_cli.bench.agents.measurement import Asked, Measurement
    from akashic_cli.bench.agents.strategies import Setting, parse_names
    from akashic_cli.bench.agents.sweep import Plan
    from akashic_cli.bench.agents.workload import Waits, episode_of
    from akashic_cli.bench.peers import parse_peers
    from akashic_cli.bench.synthetic import GROWING_SHARE_BEFORE, make_run
    from akashic_cli.bench.transcripts import read_run
    from akashic_cli.render.output import say
    from akashic_daemon.evolve.judge import Prices

    runs = [read_run(path) for path in transcripts or ()]
    if not runs:
        runs = [make_run(n, 1500, 8, share_before=GROWING_SHARE_BEFORE) for n in range(episodes)]
        say(f"no transcripts are named: {len(runs)} made-up runs of about 1,500 tokens are played")
    waits = Waits(tool_latency, most_latency, speedup)
    made = [episode_of(run, waits, most_turns=max_turns, most_answer_tokens=max_tokens) for run in runs]
    found = Prices.parse(prices)
    plan = Plan(
        parse_names(policies),
        _levels(concurrency),
        rates,
        Setting(keep, threshold, summary_tokens=summary_tokens, memory=memory, gate_tokens=gate),
        Price(found.computed, found.cached, found.output),
        Objective.parse(slo),
        seed,
        base_url is None,
    )
    played = [made[i % len(made)] for i in range(episodes)]
    folder = None if work_dir is None else work_dir.absolute()
    asked = Asked(base_url, model, folder, tuple(parse_peers(peer or [])), peer_model, peer_timeout, nll)
    _play(Measurement(plan, played, asked), out, as_json=as_json)


def _levels(text: str) -> list[int]:
    from akashic_daemon.errors import UsageError

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 0 < int(part) <= 256 for part in parts):
        raise UsageError(
            f"reading --concurrency {text!r}: it is no list of numbers from 1 to 256", hint="e.g. 1,2,4,8,16"
        )
    return [int(part) for part in parts]


def _play(measurement: Measurement, out: Path | None, *, as_json: bool) -> None:
    """Play with a progress bar on stderr, and show what was measured, also when something ended it early."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from akashic_cli.render.output import err, say

    console = err()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("requests"))
    bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal)
    # How many rates are tried isn't known before; then the bar only counts.
    task = bar.add_task("starting", total=measurement.requests)
    seen = {""}

    def told(what: str, done: int) -> None:
        bar.update(task, description=what, advance=done)
        if what not in seen and not console.is_terminal:
            say(f"measuring {what}")
        seen.add(what)

    try:
        with bar:
            measurement.run(told)
    finally:
        if measurement.has_figures:
            _show(measurement.report(), out, as_json=as_json)


def _show(result: dict[str, Any], out: Path | None, *, as_json: bool) -> None:
    import json

    from akashic_cli.bench.agents import counting, likelihood
    from akashic_cli.bench.agents.figures import COLUMNS, table_rows
    from akashic_cli.bench.agents.measurement import sayings
    from akashic_cli.render.files import write_atomically
    from akashic_cli.render.output import print_json, print_table, say

    if out is not None:
        write_atomically(out, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    if as_json:
        print_json(result)
    else:
        beside = [row for name, peer in result["peers"].items() for row in table_rows(peer, f"{name}: ")]
        print_table(COLUMNS, [*table_rows(result), *beside], right=range(1, len(COLUMNS)))
        if result["equal_bound"]:
            print()
            print_table(counting.COLUMNS, counting.table_rows(result["equal_bound"]), right=(1, 2, 4, 5, 6, 7))
        if result["likelihood"] is not None:
            print()
            print_table(likelihood.COLUMNS, likelihood.table_rows(result["likelihood"]), right=(1, 2, 3, 4, 6, 7, 8))
    for line in sayings(result):
        say(line)
