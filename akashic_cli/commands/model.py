"""`akashic model`: which models the daemon knows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from akashic_cli import complete
from akashic_cli.options import HomeOption, JsonOption, NoAutostartOption

app = typer.Typer(no_args_is_help=True, help="Register models and see what they can do.")
NameArgument = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name of a model; see `akashic model list`.", autocompletion=complete.models),
]
_SESSION_HEADER = "x-session-id"


@app.command("list")
def list_models(as_json: JsonOption = False, no_autostart: NoAutostartOption = False, home: HomeOption = None) -> None:
    """List the registered models."""
    from akashic_cli.client import connect
    from akashic_cli.render.output import print_json, print_table
    from akashic_cli.render.units import size
    from akashic_daemon.protocol.native import ModelList

    client, _ = connect(autostart=not no_autostart)
    with client:
        found = ModelList.model_validate(client.get("/models"))
    if as_json:
        print_json(found.model_dump())
        return
    rows = []
    for model in found.models:
        marks = (
            ("default", model.default), ("loaded", model.loaded), ("embedded", model.embedded), ("remote", model.remote),
        )  # fmt: skip
        state = ", ".join(name for name, holds in marks if holds)
        rows.append((model.name, "-" if model.remote else size(model.size_bytes), model.problem or state, model.path))
    print_table(("NAME", "SIZE", "STATE", "PATH"), rows, right=(1,))


@app.command()
def add(
    path: Annotated[
        Path | None, typer.Argument(metavar="PATH", help="A GGUF file or a Hugging Face folder; it stays where it is.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name; the file's stem when absent.")] = None,
    default: Annotated[bool, typer.Option("--default", help="Use it for requests that name no model.")] = False,
    remote: Annotated[
        str | None, typer.Option("--remote", metavar="URL", help="An OpenAI-compatible server that computes it.")
    ] = None,
    upstream_model: Annotated[
        str, typer.Option("--upstream-model", metavar="NAME", help="Its name there; needed if the server has several.")
    ] = "",
    window: Annotated[
        int,
        typer.Option(
            "--window", min=0, metavar="TOKENS", help="Its window there, so that long sessions are cut to it."
        ),
    ] = 0,
    key_env: Annotated[
        str, typer.Option("--key-env", metavar="NAME", help="Variable in the daemon's environment that holds the key.")
    ] = "",
    key_file: Annotated[Path | None, typer.Option("--key-file", help="File of mode 600 that holds the key.")] = None,
    pass_ops: Annotated[
        bool, typer.Option("--pass-ops", help="The server edits its cache by AKV's fields: pass operations on.")
    ] = False,
    session_header: Annotated[
        str,
        typer.Option("--session-header", metavar="NAME", help="Header by which a router finds a session's replica."),
    ] = _SESSION_HEADER,
    as_json: JsonOption = False,
    no_autostart: NoAutostartOption = False,
    home: HomeOption = None,
) -> None:
    """Register a GGUF file, a Hugging Face folder, or a model that another server computes."""
    from akashic_cli.client import connect
    from akashic_cli.render.output import print_json, say
    from akashic_daemon.errors import UsageError
    from akashic_daemon.protocol.native import AddModelRequest, ModelSummary, RemotePlace

    if (path is None) == (remote is None):
        raise UsageError(
            "registering a model: one path, or one --remote URL, says which", hint="`akashic model add --help`"
        )
    if path is not None:
        if upstream_model or window or key_env or key_file or pass_ops or session_header != _SESSION_HEADER:
            raise UsageError(
                f"registering {path}: options of models on other servers are given",
                hint="leave them out, or give --remote URL instead of a path",
            )
        request = AddModelRequest(path=_sendable(path), name=name, default=default)
    else:
        place = RemotePlace(
            url=remote or "", model=upstream_model, window_tokens=window, key_env=key_env,
            key_file=_sendable(key_file) if key_file else "", passes_ops=pass_ops, session_header=session_header,
        )  # fmt: skip
        request = AddModelRequest(remote=place, name=name, default=default)
    client, _ = connect(autostart=not no_autostart)
    with client:
        added = ModelSummary.model_validate(client.post("/models", request.model_dump()))
    if as_json:
        print_json(added.model_dump())
    else:
        print(added.name)
        say(f"registered {added.path} as {added.name}{', the default' if added.default else ''}")


@app.command()
def show(
    name: NameArgument, as_json: JsonOption = False, no_autostart: NoAutostartOption = False, home: HomeOption = None
) -> None:
    """Show one model: its size, its window, and, when it is loaded, what its engine can and can't do."""
    from akashic_cli.client import connect, segment
    from akashic_cli.render.output import print_fields, print_json
    from akashic_cli.render.units import count, size
    from akashic_daemon.protocol.native import ModelDetail

    client, _ = connect(autostart=not no_autostart)
    with client:
        model = ModelDetail.model_validate(client.get(f"/models/{segment(name)}"))
    if as_json:
        print_json(model.model_dump())
        return
    if model.summary.remote:
        window = count(model.window_tokens) if model.window_tokens else "not known here"
        fields = [("name", name), ("computed by", model.summary.path), ("window", window), *model.metadata.items()]
        print_fields(fields + [(f"can {key}", f"no: {why}") for key, why in model.why_not.items()])
        return
    fields = [
        ("name", model.summary.name),
        ("path", model.summary.path),
        ("description", model.description),
        ("architecture", model.architecture),
        ("parameters", count(model.parameters_count)),
        ("size", size(model.summary.size_bytes)),
        ("window", f"{count(model.window_tokens)} of {count(model.trained_window_tokens)} trained tokens"),
        ("vocabulary", count(model.vocabulary_size)),
        ("chat template", "yes" if model.has_chat_template else "no"),
    ]
    if model.summary.loaded:
        fields += [
            ("state", "loaded"),
            ("kv per token", size(model.kv_bytes_per_token)),
            ("fingerprint", model.fingerprint),
        ]
    else:
        fields.append(
            ("state", f"not loaded; `akashic chat --model {name}` loads it, and then its abilities are known")
        )
    if model.summary.problem:
        fields.append(("problem", model.summary.problem))
    fields += [(f"can {key}", _capability(value, model.why_not.get(key))) for key, value in model.capabilities.items()]
    missing = sorted(set(model.why_not) - set(model.capabilities))
    print_fields(fields + [(f"can {key}", _capability(False, model.why_not[key])) for key in missing])


@app.command("rm")
def remove(
    name: NameArgument, as_json: JsonOption = False, no_autostart: NoAutostartOption = False, home: HomeOption = None
) -> None:
    """Forget a registration; the file stays."""
    from akashic_cli.client import connect, segment
    from akashic_cli.render.output import print_json, say
    from akashic_daemon.protocol.native import RemovedModel

    client, _ = connect(autostart=not no_autostart)
    with client:
        removed = RemovedModel.model_validate(client.delete(f"/models/{segment(name)}"))
    if as_json:
        print_json(removed.model_dump())
    else:
        say(f"forgot {removed.name}; {removed.path} stays")


def _sendable(path: Path) -> str:
    """Return a path as the daemon is to see it. Raises UsageError when it isn't UTF-8, or `~` is nobody's."""
    from akashic_daemon.errors import UsageError
    from akashic_daemon.paths import whole

    found = str(whole(path))
    sendable = found.encode("utf-8", "replace").decode()
    if sendable != found:
        raise UsageError(f"the path {sendable} is not UTF-8", hint="rename the file or its folder")
    return sendable


def _capability(value: Any, why_not: str | None) -> str:
    shown = ("yes" if value else "no") if isinstance(value, bool) else str(value)
    return f"{shown}: {why_not}" if why_not else shown
