"""`akashic bench`: measure this daemon, or any OpenAI-compatible server, the way an agent meets it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from akashic_cli.commands import bench_agents, bench_plan, bench_run, bench_torch
from akashic_cli.options import HomeOption, JsonOption, NoAutostartOption

if TYPE_CHECKING:
    from collections.abc import Mapping

    from akashic_cli.bench.replay import Player
    from akashic_cli.bench.request import Target
    from akashic_cli.bench.tiers import Plan

app = typer.Typer(no_args_is_help=True, help="Measure a server the way an agent meets it.")


@app.callback()
def group() -> None:
    """Measure a server the way an agent meets it."""
    from akashic_cli.bench.child import end_like_an_interrupt

    end_like_an_interrupt()


@app.command()
def replay(
    transcripts: Annotated[list[Path], typer.Argument(metavar="TRANSCRIPT", help="Recorded runs: JSON with messages.")],
    base_url: Annotated[
        str | None, typer.Option("--base-url", metavar="URL", help="Another server, e.g. http://127.0.0.1:8080/v1.")
    ] = None,
    uds: Annotated[str | None, typer.Option("--uds", metavar="SOCKET", help="Unix socket to reach it through.")] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Model that requests name.")] = None,
    api_key: Annotated[str | None, typer.Option("--api-key", help="Bearer token.")] = None,
    edit: Annotated[
        str,
        typer.Option("--edit", help="none; prune:K empties all but the newest K tool results; omit:K leaves them out."),
    ] = "none",
    agents: Annotated[int, typer.Option("--agents", min=1, help="Agents that share the runs, taking turns.")] = 1,
    parallel: Annotated[bool, typer.Option("--parallel", help="Agents run at the same time.")] = False,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Longest answer of a turn.")] = 8,
    max_turns: Annotated[int | None, typer.Option("--max-turns", min=1, help="Turns of each run.")] = None,
    extra: Annotated[
        str | None, typer.Option("--extra", metavar="JSON", help="Merged into each request; $SESSION names the run.")
    ] = None,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE.png", help="Draw the turns.")] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write everything, each turn too.")] = None,
    as_json: JsonOption = False,
    no_autostart: NoAutostartOption = False,
    home: HomeOption = None,
) -> None:
    """Send each request of recorded agent runs again and report what each turn cost.

    The recorded answer, not the generated one, goes into the history, so that every server sees the same bytes.
    """
    import json

    from akashic_cli.bench import plot as plotting
    from akashic_cli.bench import summary
    from akashic_cli.bench.replay import prepare
    from akashic_cli.bench.request import Target, parse_extra
    from akashic_cli.bench.transcripts import Edit, read_run
    from akashic_cli.render.files import write_atomically
    from akashic_cli.render.output import print_json, print_table

    players = prepare([read_run(path) for path in transcripts], Edit.parse(edit), max_turns)
    if plot is not None:
        plotting.require_matplotlib()
    where, socket, named = _target(base_url, uds, model, autostart=not no_autostart)
    target = Target(where, socket, named, api_key, max_tokens, parse_extra(extra))
    wall_s = _play(players, target, agents=agents, parallel=parallel)
    setup = {"target": base_url or uds or "akashic", "edit": edit, "agents": agents, "parallel": parallel}
    result = summary.report(players, wall_s=wall_s, setup=setup)
    if out is not None:
        write_atomically(out, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    if plot is not None:
        plotting.plot(result, plot)
    if as_json:
        print_json(_without_turns(result))
    else:
        print_table(summary.COLUMNS, summary.table_rows(result), right=range(1, len(summary.COLUMNS)))
    _raise_stopped(players)


@app.command()
def fidelity(
    transcripts: Annotated[list[Path], typer.Argument(metavar="TRANSCRIPT", help="Recorded runs in any known format.")],
    keep: Annotated[
        str, typer.Option("--keep", metavar="N,...", help="Tool results that stay; each number is measured.")
    ] = "12,4,1",
    model: Annotated[
        str | None, typer.Option("--model", "-m", metavar="NAME|FILE", help="Registered model, or a GGUF file.")
    ] = None,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE.png", help="Draw the losses.")] = None,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Measure what a shortened history costs: how likely the model finds the recorded answers, and how far from the full.

    Compares the full cache with the policy tool-rolling-drop (drop), a prefill of the shortened text (exact) and leaving
    out the oldest messages until the same size is reached (truncate). Needs no daemon; the model is loaded apart.
    """
    from akashic_cli.bench import fidelity as measuring
    from akashic_cli.bench.plot import require_matplotlib
    from akashic_cli.render.output import print_json, print_table

    keeps = measuring.parse_keep(keep)
    if plot is not None:
        require_matplotlib()
    result = _measure_fidelity(transcripts, keeps, model)
    if plot is not None:
        measuring.plot(result, plot)
    if as_json:
        print_json(result)
    else:
        print_table(measuring.COLUMNS, measuring.table_rows(result), right=range(1, len(measuring.COLUMNS)))


def _measure_fidelity(transcripts: list[Path], keeps: list[int], model: str | None) -> dict[str, Any]:
    """Measure with a progress bar on stderr."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from akashic_cli.bench.fidelity import measure
    from akashic_cli.render.output import err, say

    console = err()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("turns"))
    with Progress(
        *columns, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("loading", total=None)

        def told(news: dict[str, Any]) -> None:
            if "turns" in news:
                bar.update(task, total=news["turns"], description=f"measuring {news['model']}")
            elif "turn" in news:
                bar.advance(task)
            elif "note" in news:
                say(f"note: {news['note']}")

        return measure(transcripts, keeps, model, told)


@app.command()
def tiers(
    only: Annotated[
        str | None, typer.Option("--only", metavar="NAME,...", help="Scenarios; all but agents need the cold one too.")
    ] = None,
    repeat: Annotated[
        int, typer.Option("--repeat", min=2, max=50, help="Sessions, each measured once a scenario.")
    ] = 3,
    tokens: Annotated[
        int, typer.Option("--tokens", min=300, help="About how long the made-up sessions are; an agent's are half so.")
    ] = 5000,
    transcripts: Annotated[
        list[Path] | None, typer.Option("--transcripts", metavar="FILE", help="Recorded runs instead; may be repeated.")
    ] = None,
    agents: Annotated[int, typer.Option("--agents", min=3, help="Agents that take turns with KV for two.")] = 6,
    agent_turns: Annotated[int, typer.Option("--agent-turns", min=1, help="Turns of each agent.")] = 5,
    peer_url: Annotated[
        str | None, typer.Option("--peer-url", metavar="URL", help="A server that the agents' requests go to as well.")
    ] = None,
    peer_model: Annotated[str, typer.Option("--peer-model", help="Model that the peer's requests name.")] = "default",
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", metavar="FILE", help="A model's file; the embedded model when absent."),
    ] = None,
    work_dir: Annotated[
        Path | None, typer.Option("--work-dir", metavar="DIR", help="On whose disk the SSD tier is measured.")
    ] = None,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE.png", help="Draw the scenarios.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write everything, anew after each request.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure what a session's next turn costs: its KV in the engine, in RAM, on SSD, after kill -9, with too many agents.

    A daemon of its own is started in a temporary home; yours isn't touched. An interruption shows what was measured.
    """
    from akashic_cli.bench.plot import require_matplotlib
    from akashic_cli.bench.request import Target
    from akashic_cli.bench.tiers import MAX_TOKENS, SCENARIOS, Plan, parse_only

    if plot is not None:
        require_matplotlib()
    names = SCENARIOS if only is None else parse_only(only)
    peer = None if peer_url is None else Target(peer_url, None, peer_model, None, MAX_TOKENS, {})
    runs = tuple(transcripts or ())
    plan = Plan(names, repeat, tokens, agents, agent_turns, runs, model, peer, work_dir and work_dir.absolute())
    _measure_tiers(plan, plot, out, as_json=as_json)


def _measure_tiers(plan: Plan, plot: Path | None, out: Path | None, *, as_json: bool) -> None:
    """Measure with a progress bar on stderr, and show what was measured, also when something ended it early."""
    import json
    import time

    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from akashic_cli.bench.tier_samples import report
    from akashic_cli.bench.tiers import Suite
    from akashic_cli.render.files import write_atomically
    from akashic_cli.render.output import err

    console = err()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("requests"))
    bar = Progress(*columns, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal)
    task = bar.add_task("starting", total=plan.requests)
    started_s = time.perf_counter()

    def told(scenario: str, done: int) -> None:
        bar.update(task, description=f"measuring {scenario}", advance=done)
        if out is not None and done:
            result = report(suite.result, plan.setup(), time.perf_counter() - started_s)
            write_atomically(out, json.dumps(result, indent=1, ensure_ascii=False) + "\n")

    suite = Suite(plan, told)
    try:
        with bar:
            suite.run()
    finally:
        if suite.result.samples:
            _show_tiers(report(suite.result, plan.setup(), time.perf_counter() - started_s), plot, as_json=as_json)


def _show_tiers(result: dict[str, Any], plot: Path | None, *, as_json: bool) -> None:
    from akashic_cli.bench.plot import plot_tiers
    from akashic_cli.bench.tier_samples import COLUMNS, remarks, table_rows
    from akashic_cli.render.output import print_json, print_table, say

    if as_json:
        print_json(result)
    else:
        print_table(COLUMNS, table_rows(result), right=range(1, len(COLUMNS)))
    for remark in remarks(result):
        say(remark)
    if result["written_over_computed"] is not None:
        say(f"written to disk for each byte of KV that was computed: {result['written_over_computed']:.3f}")
    for problem in result["problems"]:
        say(f"warning: {problem}")
    if result["stopped"] is not None:
        say(f"warning: {len(result['runs'])} requests were measured, then: {result['stopped']}")
    if plot is not None:
        plot_tiers(result, plot)


@app.command()
def memory(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Conversations with questions, LoCoMo's shape.")],
    leave_one_out: Annotated[
        bool,
        typer.Option("--leave-one-out", help="Fit the score's weights anew, each time on all conversations but one."),
    ] = False,
    compaction: Annotated[
        bool,
        typer.Option(
            "--compaction", help="Also what compaction leaves, and what is found within the same tokens then."
        ),
    ] = False,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Measure which share of a question's evidence memory finds, beside BM25, plain embeddings and fusion of both.

    Each conversation is searched by itself; categories 1 to 4 count. Needs no daemon and leaves your memory alone.
    """
    from akashic_cli.bench import memory as measuring
    from akashic_cli.render.output import print_json, print_table, say

    result = measuring.measure(files, leave_one_out=leave_one_out, compaction=compaction)
    if as_json:
        print_json(result)
    else:
        print_table(measuring.COLUMNS, measuring.table_rows(result), right=range(1, len(measuring.COLUMNS)))
        if left := measuring.left_rows(result):
            print_table(measuring.LEFT_COLUMNS, left, right=range(1, len(measuring.LEFT_COLUMNS)))
            print_table(measuring.ADAPTIVE_COLUMNS, measuring.adaptive_rows(result), right=(0, 2, 3, 4))
            say(measuring.adaptive_line(result))
        say(measuring.summary(result))
        say(measuring.recall_line(result))


app.command()(bench_agents.agents)
app.command()(bench_plan.plan)
app.command()(bench_torch.kernels)
app.command()(bench_torch.decode)
app.command("list")(bench_run.list_suites)
app.command()(bench_run.run)
app.command()(bench_run.history)
app.command()(bench_run.compare)
app.command()(bench_run.report)


def _target(
    base_url: str | None, uds: str | None, model: str | None, *, autostart: bool
) -> tuple[str, str | None, str | None]:
    """Return base URL, socket and model; without any of ours that is the daemon, with the model that it serves."""
    if base_url is not None or uds is not None:
        return base_url or "http://localhost/v1", uds, model or "default"
    from akashic_cli.client import connect, require_healthy

    client, status = connect(autostart=autostart)
    client.close()
    require_healthy(status)
    return "http://localhost/v1", str(client.socket), model or status.engine.model


def _play(players: list[Player], target: Target, *, agents: int, parallel: bool) -> float:
    """Replay with a progress bar on stderr and return the seconds it took."""
    import time

    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from akashic_cli.bench.replay import replay as play
    from akashic_cli.render.output import err

    console = err()
    columns = (TextColumn("replaying"), BarColumn(), MofNCompleteColumn(), TextColumn("turns"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=sum(len(player.requests) for player in players))
        started_s = time.perf_counter()
        play(players, target, agents=agents, parallel=parallel, played=lambda: bar.advance(task))
        return time.perf_counter() - started_s


def _without_turns(result: Mapping[str, Any]) -> dict[str, Any]:
    runs = [{key: value for key, value in run.items() if key != "turn_list"} for run in result["runs"]]
    return {**result, "runs": runs}


def _raise_stopped(players: list[Player]) -> None:
    """Raise the first error that ended a run early, after naming all of them: the figures then lack those turns."""
    from akashic_cli.render.output import say

    stopped = [player for player in players if player.stopped is not None]
    for player in stopped:
        say(f"warning: {player.run.name} ended after {len(player.turns)} of {len(player.requests)} turns")
    for player in stopped:
        if player.stopped is not None:
            raise player.stopped
