"""`akashic stats`: what the daemon does, live."""

from __future__ import annotations

from typing import Annotated

import typer

from akashic_cli.options import HomeOption, JsonOption, NoAutostartOption


def stats(
    once: Annotated[bool, typer.Option("--once", help="Print one snapshot and leave.")] = False,
    interval: Annotated[float, typer.Option("--interval", min=0.1, max=3600, help="Seconds between snapshots.")] = 1.0,
    as_json: JsonOption = False,
    no_autostart: NoAutostartOption = False,
    home: HomeOption = None,
) -> None:
    """Show what the daemon does: live on a terminal, one snapshot elsewhere; --json streams NDJSON.

    On a terminal: 1 to 5 or tab switch between overview, sessions, tiers, cache and memory; up, down and enter open a
    session; space holds the picture, ? shows the keys, q leaves.
    """
    import sys

    from akashic_cli.client import connect
    from akashic_cli.render import counters
    from akashic_cli.render.output import print_fields, print_json, print_json_line
    from akashic_daemon.protocol.native import Stats

    client, _ = connect(autostart=not no_autostart)
    with client:
        if once or not (as_json or sys.stdout.isatty()):
            snapshot = Stats.model_validate(client.get("/stats"))
            if as_json:
                print_json(snapshot.model_dump())
            else:
                print_fields(counters.fields(snapshot))
            return
        if not as_json:
            from akashic_cli.dashboard.live import watch

            watch(client, interval)
            return
        with client.stream("GET", "/stats/stream", params={"interval_s": interval}) as snapshots:
            for raw in snapshots:
                print_json_line(Stats.model_validate(raw).model_dump())
