"""`akashic ctx`: the context of a live session, and cache programs on it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from akashic_cli import complete
from akashic_cli.options import HomeOption, JsonOption, NoAutostartOption, PickedSession, SessionArgument

if TYPE_CHECKING:
    from akashic_daemon.protocol.context import ContextView

app = typer.Typer(
    no_args_is_help=True,
    help="See and edit what the model sees of a session. The language of operations: man akashic-ops.",
)
SelectorArgument = Annotated[
    str, typer.Argument(metavar="SELECTOR", help="What is meant, e.g. 'tool[:-12]', 'messages 3..5', 'tokens 40..59'.")
]


@app.command()
def show(
    session: PickedSession,
    as_json: JsonOption = False,
    no_autostart: NoAutostartOption = False,
    home: HomeOption = None,
) -> None:
    """Draw a session's active cache: which messages are visible, at which positions, and what was done to them."""
    from akashic_cli.client import connect, segment
    from akashic_cli.render.context import print_context
    from akashic_cli.render.output import print_json
    from akashic_daemon.protocol.context import ContextView

    client, _ = connect(autostart=not no_autostart)
    with client:
        view = ContextView.model_validate(client.get(f"/sessions/{segment(session)}/context"))
    if as_json:
        print_json(view.model_dump())
    else:
        print_context(view)


@app.command()
def append(
    session: SessionArgument,
    role: Annotated[str, typer.Argument(metavar="ROLE", help="system, user, assistant or tool.")],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The message; - reads it from stdin.")],
    as_json: JsonOption = False,
    no_autostart: NoAutostartOption = False,
    home: HomeOption = None,
) -> None:
    """Append a message without asking for an answer; the session is made when it is new."""
    from akashic_cli.client import connect, segment

    body = {"role": _role(role), "content": _text(text)}
    client, _ = connect(autostart=not no_autostart)
    with client:
        _tell(client.post(f"/sessions/{segment(session)}/messages", body), as_json)


@app.command()
def drop(
    session: SessionArgument,
    selector: SelectorArgument,
    as_json: JsonOption = False,
    no_autostart: NoAutostartOption = False,
    home: HomeOption = None,
) -> None:
    """Make messages or tokens invisible to what comes next. Nothing is computed again; drop is not forgetting."""
    _edit(session, {"op": "drop", "select": selector}, as_json=as_json, no_autostart=no_autostart)


@app.command()
def repos(
    session: PickedSession,
    as_json: JsonOption = False,
    no_autostart: NoAutostartOption = False,
    home: HomeOption = None,
) -> None:
    """Give what is visible the positions 0, 1, 2 and so on, so that the window is used up later."""
    _edit(session, {"op": "repos"}, as_json=as_json, no_autostart=no_autostart)


@app.command()
def replace(
    session: SessionArgument,
    selector: SelectorArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The new text; - reads it from stdin.")],
    as_json: JsonOption = False,
    no_autostart: NoAutostartOption = False,
    home: HomeOption = None,
) -> None:
    """Put a text in the place of each message that is meant; what was computed after it stays."""
    op = {"op": "replace", "select": selector, "content": _text(text)}
    _edit(session, op, as_json=as_json, no_autostart=no_autostart)


@app.command()
def policy(
    session: SessionArgument,
    spec: Annotated[
        str,
        typer.Argument(
            metavar="POLICY",
            help="E.g. tool-rolling-drop:keep=4, none, or default for the settings'.",
            autocompletion=complete.policies,
        ),
    ],
    as_json: JsonOption = False,
    no_autostart: NoAutostartOption = False,
    home: HomeOption = None,
) -> None:
    """Let a policy edit the session's context from here on; `akashic policy list` shows which there are."""
    _put(session, "policy", spec, as_json=as_json, no_autostart=no_autostart)


@app.command()
def edits(
    session: SessionArgument,
    reuse: Annotated[
        str, typer.Argument(metavar="exact|drop|default", help="Compute anew, keep later KV, or as the settings say.")
    ],
    as_json: JsonOption = False,
    no_autostart: NoAutostartOption = False,
    home: HomeOption = None,
) -> None:
    """Say what an edited history of the session becomes in requests that don't say."""
    _put(session, "edit_reuse", reuse, as_json=as_json, no_autostart=no_autostart)


@app.command()
def run(
    session: SessionArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The script; - reads it from stdin.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Tell what each statement would do and save; change nothing.")
    ] = False,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Model of its answers.", autocompletion=complete.models)
    ] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", min=0, help="0 is greedy [chat.temperature].")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the sampler, for repeatable answers.")] = None,
    as_json: JsonOption = False,
    no_autostart: NoAutostartOption = False,
    home: HomeOption = None,
) -> None:
    """Run a script of operations on a session; the session is made when it is new.

    When a statement fails, or an assertion doesn't hold, the session stays as it was. See man akashic-ops.
    """
    from akashic_cli.client import connect
    from akashic_cli.script import play, read_script
    from akashic_daemon.protocol.context import ScriptRequest

    source, files = read_script(file)
    request = ScriptRequest(
        script=source, files=files, dry_run=dry_run, model=model, temperature=temperature, seed=seed
    )
    client, _ = connect(autostart=not no_autostart)
    with client:
        play(client, session, request, as_json=as_json)


def _put(session: str, setting: str, value: str, *, as_json: bool, no_autostart: bool) -> None:
    """Set one of a session's own settings; `default` gives it back to the settings file."""
    from akashic_cli.client import connect, segment

    client, _ = connect(autostart=not no_autostart)
    with client:
        body = {setting: None if value == "default" else value}
        _tell(client.put(f"/sessions/{segment(session)}/{setting}", body), as_json)


def _edit(session: str, op: dict[str, Any], *, as_json: bool, no_autostart: bool) -> None:
    from akashic_cli.client import connect, segment
    from akashic_cli.render.context import totals
    from akashic_cli.render.output import print_json, say
    from akashic_cli.render.units import count
    from akashic_daemon.protocol.context import OpsResult

    client, _ = connect(autostart=not no_autostart)
    with client:
        result = OpsResult.model_validate(client.post(f"/sessions/{segment(session)}/ops", {"ops": [op]}))
    if as_json:
        print_json(result.model_dump())
        return
    for added in result.added:
        say(f"{added.text}: {count(added.tokens)} tokens")
    for note in result.notes:
        say(f"note: {note}")
    if not result.added:
        say("nothing to do: nothing visible is meant")
    say(totals(result.context))


def _tell(body: Any, as_json: bool) -> None:
    from akashic_cli.render.context import totals
    from akashic_cli.render.output import print_json, say
    from akashic_daemon.protocol.context import ContextView

    view: ContextView = ContextView.model_validate(body)
    if as_json:
        print_json(view.model_dump())
    else:
        say(f"{len(view.messages)} messages, policy {view.policy}; {totals(view)}")


def _role(role: str) -> str:
    from difflib import get_close_matches

    from akashic_daemon.errors import UsageError

    roles = ("system", "user", "assistant", "tool")
    if role not in roles:
        near = get_close_matches(role, roles, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"roles are {', '.join(roles)}"
        raise UsageError(f"appending a message: there is no role {role!r}", hint=hint)
    return role


def _text(text: str) -> str:
    from akashic_cli.script import read_source

    return read_source(Path("-"), "the text") if text == "-" else text
