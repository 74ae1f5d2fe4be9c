"""`akashic serve`: the daemon in the foreground."""

from __future__ import annotations

import typer

from akashic_cli.options import takes_settings


@takes_settings
def serve(flags: dict[str, object]) -> None:
    """Run the daemon in the foreground, until SIGTERM or Ctrl-C."""
    from akashic_daemon.config import load
    from akashic_daemon.paths import find_paths
    from akashic_daemon.process.lifecycle import serve as run

    paths = find_paths()
    raise typer.Exit(run(load(paths.config_file, flags=flags), paths))
