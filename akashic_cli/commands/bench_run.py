"""`akashic bench list|run|history|compare|report`: the suites as one measurement that can be kept and compared."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    from akashic_cli.bench.record import Record, SuiteRecord
    from akashic_cli.bench.suites import Inputs


def list_suites(as_json: JsonOption = False) -> None:
    """List the suites that `bench run` knows, what they measure and about how long they take."""
    from akashic_cli.bench.suites import SUITES
    from akashic_cli.render.output import print_json, print_table
    from akashic_cli.render.units import duration

    if as_json:
        print_json(
            [
                {
                    "suite": s.name,
                    "about": s.about,
                    "quick_s": s.seconds[0],
                    "full_s": s.seconds[1],
                    "peers": s.takes_peers,
                }
                for s in SUITES.values()
            ]
        )
        return
    rows = [
        (s.name, s.about, duration(s.seconds[0]), duration(s.seconds[1]), "yes" if s.takes_peers else "no")
        for s in SUITES.values()
    ]
    print_table(("SUITE", "WHAT IT MEASURES", "QUICK", "FULL", "PEERS"), rows, right=(2, 3))


def run(
    suites: Annotated[list[str], typer.Argument(metavar="SUITE", help="Suites of `bench list`, or all.")],
    full: Annotated[bool, typer.Option("--full/--quick", help="Everything, or minutes.")] = False,
    transcripts: Annotated[
        list[Path] | None, typer.Option("--transcripts", metavar="FILE", help="Recorded runs; made-up ones if absent.")
    ] = None,
    conversations: Annotated[
        list[Path] | None, typer.Option("--conversations", metavar="FILE", help="For memory: LoCoMo's shape.")
    ] = None,
    peer: PeersOption = None,
    peer_model: PeerModelOption = "default",
    peer_timeout: PeerTimeoutOption = PEER_TIMEOUT_S,
    model: MeasuredModelOption = None,
    work_dir: WorkDirOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the same run that broke off.")] = False,
    out: WrittenOption = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Write a report: .md, or .html with plots.")
    ] = None,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Run suites and keep what they measured; daemons of their own answer, so yours isn't touched.

    A suite that fails leaves the others alone and makes the exit code 1. What was measured before an interruption is kept,
    and --resume goes on from there.
    """
    from akashic_cli.bench.peers import parse_peers, served
    from akashic_cli.bench.record import DONE
    from akashic_cli.bench.runner import begin, chosen, unfinished
    from akashic_cli.bench.suites import Inputs

    names = chosen(suites)
    peers = parse_peers(peer or [])
    inputs = Inputs(
        full,
        tuple(transcripts or ()),
        tuple(conversations or ()),
        model,
        None if work_dir is None else work_dir.absolute(),
        asked_peers=tuple(peers),
    )
    _readable(inputs)
    command = shlex.join(["akashic", *sys.argv[1:]])
    record = unfinished(names, inputs) if resume else begin(names, inputs, command)
    with served(peers, model, peer_model=peer_model, timeout_s=peer_timeout, max_tokens=8) as targets:
        try:
            _with_progress(record, names, replace(inputs, peers=targets))
        finally:
            _tell(record, out, report, as_json=as_json)
    if record.status != DONE:
        raise typer.Exit(1)


def _tell(record: Record, out: Path | None, report: Path | None, *, as_json: bool) -> None:
    """Write and show what was measured, also when something ended it early."""
    import json

    from akashic_cli.render.files import write_atomically
    from akashic_cli.render.output import print_json

    if out is not None:
        write_atomically(out, json.dumps(record.to_json(), indent=1, ensure_ascii=False) + "\n")
    if report is not None:
        _write_report(record, report)
    if as_json:
        print_json(record.to_json())
    else:
        _show(record)


def history(as_json: JsonOption = False, home: HomeOption = None) -> None:
    """List the runs that were kept, the newest first."""
    from akashic_cli.bench import record
    from akashic_cli.render.output import print_json, print_table, say

    past, problems = record.history()
    for problem in problems:
        say(f"warning: {problem}")
    if as_json:
        print_json([entry.to_json() for entry in past])
    elif not past:
        say("no run is kept yet: `akashic bench run all` makes one in some minutes")
    else:
        print_table(("RUN", "SIZE", "STATUS", "SUITES"), record.table_rows(past))


def compare(
    before: Annotated[str, typer.Argument(metavar="BEFORE", help="A file, an id of `bench history`, or latest.")],
    after: Annotated[str, typer.Argument(metavar="AFTER", help="The same, to compare with it.")],
    fail_on_worse: Annotated[bool, typer.Option("--fail-on-worse", help="Exit code 1 if anything got worse.")] = False,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Compare two runs figure by figure, with the noise of their samples."""
    from akashic_cli.bench import compare as comparing
    from akashic_cli.bench import record
    from akashic_cli.render.output import print_json, print_table, say

    result = comparing.compare(record.find(before), record.find(after))
    if as_json:
        print_json(result)
    else:
        print_table(comparing.COLUMNS, comparing.table_rows(result), right=range(3, 8))
    if result["machine_differs_in"]:
        say(f"warning: the machines differ in {', '.join(result['machine_differs_in'])}")
    if not result["same_size"] or result["inputs_differ"]:
        say("warning: the runs had other sizes or inputs")
    if not result["rows"]:
        say("the runs have no figure in common")
    if fail_on_worse and any(row["verdict"] == "worse" for row in result["rows"]):
        raise typer.Exit(1)


def report(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A file, an id of `bench history`, or latest.")],
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help=".md, or .html; stdout if absent.")] = None,
    home: HomeOption = None,
) -> None:
    """Write a run as a report: Markdown, or one HTML page with plots, in light and dark."""
    from akashic_cli.bench import record
    from akashic_cli.bench.report import markdown

    found = record.find(run)
    if out is None:
        print(markdown(found), end="")
    else:
        _write_report(found, out)


def _write_report(record: Record, path: Path) -> None:
    """Write a report of the kind that the file's name says. Raises UsageError on another one."""
    from akashic_cli.bench.report import html, markdown
    from akashic_cli.render.files import write_atomically
    from akashic_cli.render.output import say
    from akashic_daemon.errors import Unsupported, UsageError

    if path.suffix == ".md":
        write_atomically(path, markdown(record))
        return
    if path.suffix not in {".html", ".htm"}:
        raise UsageError(f"writing the report {path}: only .md and .html are known")
    from akashic_cli.bench.pictures import draw
    from akashic_cli.bench.plot import require_matplotlib

    why, pictures = "", {}
    try:
        require_matplotlib()
        pictures = draw(record)
    except Unsupported:
        why = "No plots: matplotlib isn't installed (`./install.sh --with plot` brings it)."
        say(f"warning: {path} has no plots: matplotlib isn't installed")
    write_atomically(path, html(record, pictures, why))


def _readable(inputs: Inputs) -> None:
    """Refuse files that aren't there before the long work."""
    from akashic_daemon.errors import UsageError

    files = [*inputs.transcripts, *inputs.conversations]
    for path in files if inputs.model is None else [*files, Path(inputs.model)]:
        if not path.is_file():
            raise UsageError(f"running bench suites on {path}: there is no such file", hint="check the path")


def _with_progress(record: Record, names: list[str], inputs: Inputs) -> None:
    """Run with a bar of the whole on stderr, lines where that is no terminal."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from akashic_cli.bench.runner import run as run_suites
    from akashic_cli.render.output import err, say
    from akashic_cli.render.units import duration

    console = err()
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=1.0)

        class Bar:
            def started(self, what: str) -> None:
                bar.update(task, description=what)
                if not console.is_terminal:
                    say(f"measuring {what}")

            def moved(self, share: float) -> None:
                bar.update(task, completed=share)

            def ended(self, found: SuiteRecord) -> None:
                why = f": {found.reason}" if found.reason else ""
                say(f"{found.suite} ({found.target}): {found.status} after {duration(found.seconds)}{why}")

        run_suites(record, names, inputs, Bar())


def _show(record: Record) -> None:
    from akashic_cli.bench.report import figure
    from akashic_cli.render.output import print_table, say

    rows = [(s.suite, s.target, m.name, figure(m)) for s in record.suites for m in s.measures]
    print_table(("SUITE", "TARGET", "FIGURE", "VALUE"), rows, right=(3,))
    say(f"run {record.id}: {record.status}")
