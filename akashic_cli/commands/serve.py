"""`akashic serve`: the daemon in the foreground."""

from __future__ import annotations

import typer

from akashic_cli.options import (
    GpuLayersOption,
    HomeOption,
    HostOption,
    IdleExitOption,
    InsecureOption,
    KvTokensOption,
    KvTypeOption,
    MaxRunningOption,
    PortOption,
    ServedModelOption,
    ThreadsOption,
    WindowOption,
    serve_flags,
)


def serve(
    host: HostOption = None,
    port: PortOption = None,
    insecure_no_auth: InsecureOption = None,
    idle_exit: IdleExitOption = None,
    model: ServedModelOption = None,
    window: WindowOption = None,
    gpu_layers: GpuLayersOption = None,
    kv_type: KvTypeOption = None,
    kv_tokens: KvTokensOption = None,
    max_running: MaxRunningOption = None,
    threads: ThreadsOption = None,
    home: HomeOption = None,
) -> None:
    """Run the daemon in the foreground, until SIGTERM or Ctrl-C."""
    from akashic_daemon.config import load
    from akashic_daemon.paths import find_paths
    from akashic_daemon.process.lifecycle import serve as run

    flags = serve_flags(
        host,
        port,
        insecure_no_auth,
        idle_exit,
        model,
        window,
        gpu_layers,
        kv_type,
        kv_tokens,
        max_running,
        threads,
    )
    paths = find_paths()
    raise typer.Exit(run(load(paths.config_file, flags=flags), paths))
