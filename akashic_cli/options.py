"""Options that several commands share. Nothing here does work, so that `--help` stays quick."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from inspect import Parameter, Signature
from typing import Annotated

import typer

from akashic_cli import complete, pick


def _set_home(value: str | None) -> str | None:
    if value == "":  # of a variable that isn't set, say; the current folder is nobody's home
        raise typer.BadParameter("no folder is named")
    if value is not None:
        from akashic_daemon.paths import whole

        # The daemon that a command may start must find the same home, so it goes where children inherit it.
        os.environ["AKASHIC_HOME"] = str(whole(value))
    return value


HomeOption = Annotated[
    str | None,
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

SessionArgument = Annotated[
    str, typer.Argument(metavar="SESSION", help="Name of a session.", autocompletion=complete.sessions)
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

_SERVED: Mapping[str, tuple[str, object]] = {
    "host": (
        "serve.host",
        Annotated[str | None, typer.Option("--host", help="Loopback address for TCP [serve.host].")],
    ),
    "port": (
        "serve.port",
        Annotated[
            int | None,
            typer.Option("--port", help="TCP port; 0 means Unix socket only [serve.port].", min=0, max=65535),
        ],
    ),
    "insecure_no_auth": (
        "serve.insecure_no_auth",
        Annotated[
            bool | None,
            typer.Option("--insecure-no-auth", help="Serve TCP without a bearer token [serve.insecure_no_auth]."),
        ],
    ),
    "idle_exit": (
        "serve.idle_exit_s",
        Annotated[
            int | None,
            typer.Option("--idle-exit", help="Stop after so many idle seconds; 0 never [serve.idle_exit_s]."),
        ],
    ),
    "model": (
        "model.default",
        Annotated[
            str | None,
            typer.Option("--model", "-m", help="Model to load [model.default].", autocompletion=complete.models),
        ],
    ),
    "window": (
        "model.window_tokens",
        Annotated[
            int | None, typer.Option("--window", help="Longest prompt plus answer, in tokens [model.window_tokens].")
        ],
    ),
    "gpu_layers": (
        "model.gpu_layers",
        Annotated[int | None, typer.Option("--gpu-layers", help="Layers on the GPU; -1 all [model.gpu_layers].")],
    ),
    "kv_type": (
        "model.kv_type",
        Annotated[str | None, typer.Option("--kv-type", help="f16, f32 or q8_0 [model.kv_type].")],
    ),
    "kv_tokens": (
        "cache.kv_tokens",
        Annotated[int | None, typer.Option("--kv-tokens", help="KV cells shared by all sessions [cache.kv_tokens].")],
    ),
    "max_running": (
        "schedule.max_running",
        Annotated[int | None, typer.Option("--max-running", help="Requests decoded together [schedule.max_running].")],
    ),
    "threads": (
        "schedule.threads",
        Annotated[int | None, typer.Option("--threads", help="CPU threads; 0 adapts [schedule.threads].")],
    ),
}
"""Options of who starts a daemon: the setting that each overrides, and how it is typed."""


def takes_settings(run: Callable[[dict[str, object]], None]) -> Callable[..., None]:
    """Return a command with the options of who starts a daemon; `run` gets the settings that were given, by their names."""

    def command(home: str | None = None, **given: object) -> None:
        del home  # its option has set it
        run({_SERVED[option][0]: value for option, value in given.items() if value is not None})

    kinds = {option: kind for option, (_, kind) in _SERVED.items()} | {"home": HomeOption}
    # Typer reads options off a signature.
    command.__signature__ = Signature(  # type: ignore[attr-defined]
        [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kind) for name, kind in kinds.items()]
    )
    command.__name__, command.__doc__ = run.__name__, run.__doc__
    return command
