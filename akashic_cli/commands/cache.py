"""`akashic cache`: what is kept, and whether it is whole."""

from __future__ import annotations

from typing import Annotated

import typer

from akashic_cli.options import HomeOption, JsonOption, NoAutostartOption

app = typer.Typer(no_args_is_help=True, help="Look after what is kept.")


@app.command()
def tree(
    depth: Annotated[int, typer.Option("--depth", min=1, max=100, help="Draw so many nodes deep.")] = 12,
    as_json: JsonOption = False,
    no_autostart: NoAutostartOption = False,
    home: HomeOption = None,
) -> None:
    """Draw what is computed, over all sessions: runs of tokens, and the operations between them."""
    from akashic_cli.client import connect
    from akashic_cli.render.index import print_tree
    from akashic_cli.render.output import print_json
    from akashic_daemon.protocol.context import CacheTree

    client, _ = connect(autostart=not no_autostart)
    with client:
        found = CacheTree.model_validate(client.get("/cache/tree", depth=depth))
    if as_json:
        print_json(found.model_dump())
    else:
        print_tree(found)


@app.command()
def verify(as_json: JsonOption = False, no_autostart: NoAutostartOption = False, home: HomeOption = None) -> None:
    """Look for damage in the store, changing nothing. Exit code 1 when there is any; answers wait meanwhile."""
    from akashic_cli.client import connect
    from akashic_cli.render.output import print_json, print_table, say
    from akashic_cli.render.units import count
    from akashic_daemon.errors import AkashicError
    from akashic_daemon.protocol.native import StoreReport

    client, status = connect(autostart=not no_autostart)
    with client, client.stream("GET", "/cache/verify") as answers:
        answer = next(iter(answers), None)
    if answer is None:
        raise AkashicError(
            f"verifying {status.database}: the answer ended without a result", hint="`akashic daemon logs` says more"
        )
    report = StoreReport.model_validate(answer)
    if as_json:
        print_json(report.model_dump(include={"sessions", "findings"}))
    elif report.findings:
        print_table(("KIND", "SUBJECT", "DETAIL"), [(f.kind, f.subject, f.detail) for f in report.findings])
    if not report.findings:
        say(f"{status.database} is whole: {count(report.sessions)} sessions")
        return
    found = f"{count(len(report.findings))} finding{'s' if len(report.findings) > 1 else ''}"
    say(f"{status.database} has {found} and was left as it is; restore a backup of it")
    raise typer.Exit(1)
