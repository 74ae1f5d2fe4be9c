"""`akashic launch`: a coding agent on this daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from akashic_cli import complete
from akashic_cli.launch import Agent
from akashic_cli.options import HomeOption, NoAutostartOption

if TYPE_CHECKING:
    from akashic_cli.client import Client
    from akashic_cli.launch import Target
    from akashic_daemon.protocol.native import Status

_PORT = 8642


def launch(
    agent: Annotated[Agent, typer.Argument(metavar="CLIENT", help="claude, codex, opencode, aider or env.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="Handed to the client; put -- before its options.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", help="Model to use; the default one when absent.", autocompletion=complete.models
        ),
    ] = None,
    show: Annotated[
        bool, typer.Option("--print", help="Print the client's settings, with the token, instead of starting it.")
    ] = False,
    no_autostart: NoAutostartOption = False,
    home: HomeOption = None,
) -> None:
    """Start a coding agent on this daemon, told which context fits; `eval "$(akashic launch env)"` sets up a shell."""
    import os
    import shutil

    from akashic_cli.client import connect
    from akashic_cli.launch import setup
    from akashic_cli.render.output import say
    from akashic_daemon.errors import UsageError

    client, status = connect(autostart=not no_autostart)
    with client:
        target = _target(client, status, model)
    made = setup(agent, target)
    command = [*made.command, *(arguments or [])]
    if target.window_tokens is None:
        say(f"the window of {target.model} isn't known before it is loaded, so the client isn't told of it")
    if show or not made.command:
        print(made.as_shell())
        return
    program = shutil.which(command[0])
    if program is None:
        raise UsageError(
            f"starting {command[0]}: there is no such program on PATH",
            hint=f"install it, or see its settings with `akashic launch {agent.value} --print`",
        )
    window = "" if target.window_tokens is None else f", a window of {target.window_tokens:,} tokens"
    say(f"{command[0]} on {target.url}, model {target.model}{window}")
    try:
        os.execve(program, command, {**os.environ, **made.env})
    except OSError as error:
        raise UsageError(f"starting {program}: {error.strerror}", hint="see that it runs by itself") from error


def _target(client: Client, status: Status, name: str | None) -> Target:
    """Find out what a client must be told. Raises NotFound for the model."""
    from akashic_cli.launch import NO_TOKEN, Target
    from akashic_daemon.errors import NotFound
    from akashic_daemon.paths import find_paths
    from akashic_daemon.protocol.native import ModelList

    tcp = status.tcp or _opened(client)
    models = ModelList.model_validate(client.get("/models")).models
    found = next((m for m in models if (m.name == name if name is not None else m.default)), None)
    if found is None:
        known = ", ".join(m.name for m in models) or "none"
        raise NotFound(f"launching a client: there is no model {name or 'by default'!r}", hint=f"known: {known}")
    window, engine = found.window_tokens, status.engine
    if engine.model == found.name and engine.window_tokens:
        window = min(engine.window_tokens, engine.kv_cells_total or engine.window_tokens)
    file = find_paths().token_file
    token = file.read_text("ascii").strip() if file.exists() else NO_TOKEN
    return Target(tcp, token, found.name, window)


def _opened(client: Client) -> str:
    """Have the daemon listen on TCP, which clients need; on any free port where the usual one is taken."""
    from akashic_cli.render.output import say
    from akashic_daemon.errors import ConfigError
    from akashic_daemon.protocol.native import Listening

    try:
        tcp, lasting = Listening.model_validate(client.post("/listen", {"port": _PORT})).tcp, str(_PORT)
    except ConfigError as error:
        say(f"note: {error.message}")
        tcp, lasting = Listening.model_validate(client.post("/listen", {"port": 0})).tcp, "PORT"
    say(f"the daemon listens on {tcp} now, until it ends; `akashic config set serve.port {lasting}` makes that lasting")
    return tcp
