"""`akashic policy`: which policies there are, whether one is right, and better ones. None of it needs the daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from akashic_cli import complete
from akashic_cli.commands import policy_evolve
from akashic_cli.options import HomeOption, JsonOption

app = typer.Typer(no_args_is_help=True, help="See and check cache policies.")


@app.command("list")
def list_policies(as_json: JsonOption = False, home: HomeOption = None) -> None:
    """List the policies that come with akashic, and those in the settings folder's `policies`."""
    from akashic_cli.render.output import print_json, print_table
    from akashic_daemon.context.policies import PolicyShelf
    from akashic_daemon.paths import find_paths

    found = PolicyShelf(find_paths()).all()
    if as_json:
        print_json([policy.model_dump() for policy in found])
        return
    rows = [
        (p.name, ", ".join(f"{k}={v}" for k, v in p.parameters.items()), p.problem or p.about, p.path or "built in")
        for p in found
    ]
    print_table(("POLICY", "PARAMETERS", "ABOUT", "FROM"), rows)


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="POLICY", help="Name of a policy.", autocompletion=complete.policies)],
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Print a policy's text."""
    from akashic_cli.render.output import print_json, printable
    from akashic_daemon.context.policies import PolicyShelf
    from akashic_daemon.paths import find_paths

    shelf = PolicyShelf(find_paths())
    source = shelf.source(name)
    if as_json:
        print_json(next(p for p in shelf.all() if p.name == name).model_dump())
    else:
        print(printable(source), end="" if source.endswith("\n") else "\n")


@app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A policy file; - reads it from stdin.")],
    window: Annotated[
        int, typer.Option("--window", min=1, help="Judge shares of the window as if it had so many tokens.")
    ] = 8192,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Say what is wrong in a policy, or likely not meant. Exit code 1 when it can't be used."""
    from akashic_cli.render.output import print_json, print_table, say
    from akashic_cli.script import read_source
    from akashic_daemon.program.policy_check import Severity, check_policy

    name = "stdin" if str(file) == "-" else str(file)
    source = read_source(file, "the policy")
    found = check_policy(source, window_tokens=window)
    if as_json:
        findings = [{"line": f.line, "severity": f.severity.value, "message": f.message} for f in found]
        print_json({"file": name, "findings": findings})
    elif found:
        rows = [(str(f.line) if f.line else "-", f.severity.value, f.message) for f in found]
        print_table(("LINE", "SEVERITY", "FINDING"), rows, right=(0,))
    errors = sum(f.severity is Severity.ERROR for f in found)
    if errors:
        say(f"{name} can't be used as it is")
        raise typer.Exit(1)
    say(f"{name} can be used" + (", but look at the warnings" if found else ""))


app.command()(policy_evolve.evolve)
