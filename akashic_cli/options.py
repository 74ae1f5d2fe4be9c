"""Options that several commands share. Nothing here does work, so that `--help` stays quick."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from akashic_cli import complete, pick


def _set_home(value: Path | None) -> Path | None:
    if value is not None:
        # The daemon that a command may start must find the same home, so it goes where children inherit it.
        os.environ["AKASHIC_HOME"] = str(value.expanduser().absolute())
    return value


HomeOption = Annotated[
    Path | None,
    typer.Option(
        "--home",
        metavar="DIR",
        callback=_set_home,
        is_eager=True,
        help="Folder of settings, store, socket and logs; the same as AKASHIC_HOME.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
NoAutostartOption = Annotated[
    bool, typer.Option("--no-autostart", help="Fail with exit code 3 instead of starting the daemon.")
]
FormatOption = Annotated[
    str | None,
    typer.Option("--format", metavar="NAME", help="Format of the transcript; recognised by its content when absent."),
]

PickedSession = Annotated[
    str,
    typer.Argument(
        metavar="SESSION",
        default_factory=pick.session,
        show_default=False,
        help="Name of a session; on a terminal it may be left out and chosen by a few letters.",
        autocompletion=complete.sessions,
    ),
]
NamespaceOption = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        metavar="NAME",
        help="Namespace of memory: user, project:NAME or session:NAME [memory.namespace].",
    ),
]
NamespacesOption = Annotated[
    list[str] | None,
    typer.Option("--namespace", metavar="NAME", help="Only this namespace; may be repeated. All when absent."),
]

HostOption = Annotated[str | None, typer.Option("--host", help="Loopback address for TCP [serve.host].")]
PortOption = Annotated[
    int | None, typer.Option("--port", help="TCP port; 0 means Unix socket only [serve.port].", min=0, max=65535)
]
InsecureOption = Annotated[
    bool | None, typer.Option("--insecure-no-auth", help="Serve TCP without a bearer token [serve.insecure_no_auth].")
]
IdleExitOption = Annotated[
    int | None, typer.Option("--idle-exit", help="Stop after so many idle seconds; 0 never [serve.idle_exit_s].")
]
ServedModelOption = Annotated[str | None, typer.Option("--model", help="Model to load [model.default].")]
WindowOption = Annotated[
    int | None, typer.Option("--window", help="Longest prompt plus answer, in tokens [model.window_tokens].")
]
GpuLayersOption = Annotated[
    int | None, typer.Option("--gpu-layers", help="Layers on the GPU; -1 all [model.gpu_layers].")
]
KvTypeOption = Annotated[str | None, typer.Option("--kv-type", help="f16, f32 or q8_0 [model.kv_type].")]
KvTokensOption = Annotated[
    int | None, typer.Option("--kv-tokens", help="KV cells shared by all sessions [cache.kv_tokens].")
]
MaxRunningOption = Annotated[
    int | None, typer.Option("--max-running", help="Requests decoded together [schedule.max_running].")
]
ThreadsOption = Annotated[int | None, typer.Option("--threads", help="CPU threads; 0 adapts [schedule.threads].")]


def serve_flags(
    host: str | None,
    port: int | None,
    insecure: bool | None,
    idle_exit: int | None,
    model: str | None,
    window: int | None,
    gpu_layers: int | None,
    kv_type: str | None,
    kv_tokens: int | None,
    max_running: int | None,
    threads: int | None,
) -> dict[str, object]:
    """Return the settings that the flags of `serve` name; flags that weren't given are left out."""
    flags: dict[str, object] = {
        "serve.host": host,
        "serve.port": port,
        "serve.insecure_no_auth": insecure or None,
        "serve.idle_exit_s": idle_exit,
        "model.default": model,
        "model.window_tokens": window,
        "model.gpu_layers": gpu_layers,
        "model.kv_type": kv_type,
        "cache.kv_tokens": kv_tokens,
        "schedule.max_running": max_running,
        "schedule.threads": threads,
    }
    return {name: value for name, value in flags.items() if value is not None}
