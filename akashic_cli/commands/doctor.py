"""`akashic doctor`: look for what is wrong, and say what to do."""

from __future__ import annotations

import typer

from akashic_cli.options import HomeOption, JsonOption


def doctor(as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Check the installation, the model, the machine and the daemon. Exit code 1 when something fails."""
    from dataclasses import asdict

    from akashic_cli.doctor import Level, diagnose
    from akashic_cli.render.output import out, print_json, printable

    findings = diagnose()
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        from rich.text import Text

        styles = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}
        console = out()
        for finding in findings:
            console.print(
                Text(f"{finding.level:<4}", style=styles[finding.level]), printable(finding.text), markup=False
            )
            if finding.to_do:
                console.print(f"       {printable(finding.to_do)}", markup=False)
    if any(finding.level is Level.FAIL for finding in findings):
        raise typer.Exit(1)
