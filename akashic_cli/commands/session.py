"""`akashic session`: the conversations that the daemon keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from akashic_cli import complete
from akashic_cli.options import HomeOption, JsonOption, NoAutostartOption, PickedSession, SessionArgument
from akashic_cli.quantities import ExpectOption

app = typer.Typer(no_args_is_help=True, help="List, read, branch, export and delete sessions.")


@app.command("list")
def list_sessions(
    as_json: JsonOption = False, no_autostart: NoAutostartOption = False, home: HomeOption = None
) -> None:
    """List all sessions, newest first."""
    from akashic_cli.client import connect
    from akashic_cli.render.output import print_json, print_table, say
    from akashic_cli.render.units import ago, count
    from akashic_daemon.protocol.native import SessionList

    client, _ = connect(autostart=not no_autostart)
    with client:
        found = SessionList.model_validate(client.get("/sessions"))
    if as_json:
        print_json(found.model_dump())
        return
    rows = [
        (s.session, count(s.messages), count(s.tokens), ago(s.updated_at_s), s.forked_from or s.origin, s.title)
        for s in found.sessions
    ]
    if not rows:
        say("there is no session yet; `akashic chat`, or `akashic import FILE`, begins one")
    print_table(("SESSION", "MESSAGES", "TOKENS", "CHANGED", "FROM", "TITLE"), rows, right=(1, 2))


@app.command()
def show(
    session: PickedSession,
    as_json: JsonOption = False,
    no_autostart: NoAutostartOption = False,
    home: HomeOption = None,
) -> None:
    """Print the messages of a session."""
    from akashic_cli.client import connect, segment
    from akashic_cli.render.output import print_json, printable
    from akashic_cli.render.units import count
    from akashic_daemon.protocol.native import SessionDetail

    client, _ = connect(autostart=not no_autostart)
    with client:
        detail = SessionDetail.model_validate(client.get(f"/sessions/{segment(session)}"))
    if as_json:
        print_json(detail.model_dump())
        return
    for view in detail.messages:
        tokens = "" if view.tokens is None else f", {count(view.tokens)} tokens"
        print(f"--- {view.index} {view.message.get('role', '?')}{tokens}")
        print(printable(_message_text(view.message)))


@app.command()
def fork(
    session: PickedSession,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the branch; chosen by the daemon if absent.")
    ] = None,
    at: Annotated[int | None, typer.Option("--at", min=0, help="Keep only the first N messages.", metavar="N")] = None,
    as_json: JsonOption = False,
    no_autostart: NoAutostartOption = False,
    home: HomeOption = None,
) -> None:
    """Branch a session off; what both have in common is stored and computed once."""
    from akashic_cli.client import connect, segment
    from akashic_cli.render.output import print_json
    from akashic_daemon.protocol.native import ForkRequest, SessionSummary

    client, _ = connect(autostart=not no_autostart)
    request = ForkRequest(name=name, at_message=at)
    with client:
        made = SessionSummary.model_validate(client.post(f"/sessions/{segment(session)}/fork", request.model_dump()))
    if as_json:
        print_json(made.model_dump())
    else:
        print(made.session)


@app.command()
def export(
    session: PickedSession,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write here instead of stdout.")
    ] = None,
    with_kv: Annotated[
        bool,
        typer.Option("--with-kv", help="Write one file that holds its KV too, so that another home goes on warm."),
    ] = False,
    no_autostart: NoAutostartOption = False,
    home: HomeOption = None,
) -> None:
    """Write the messages of a session as NDJSON, one a line; `akashic import` reads it back."""
    import json

    from akashic_cli.client import connect, segment
    from akashic_cli.render.files import write_atomically

    if with_kv:
        from akashic_cli.warm import export_warm

        export_warm(session, output, autostart=not no_autostart)
        return
    client, _ = connect(autostart=not no_autostart)
    with client, client.stream("GET", f"/sessions/{segment(session)}/export") as messages:
        lines = (json.dumps(message, ensure_ascii=False) + "\n" for message in messages)
        if output is not None:
            write_atomically(output, "".join(lines))
            return
        for line in lines:
            print(line, end="")


@app.command("rm")
def remove(
    sessions: Annotated[
        list[str], typer.Argument(metavar="SESSION", help="Names of sessions.", autocompletion=complete.sessions)
    ],
    as_json: JsonOption = False,
    no_autostart: NoAutostartOption = False,
    home: HomeOption = None,
) -> None:
    """Delete sessions, and every message and block of KV that no other session holds."""
    from akashic_cli.client import connect, segment
    from akashic_cli.render.output import print_json_line, say
    from akashic_cli.render.units import count, size
    from akashic_daemon.protocol.native import RemovedSession

    client, _ = connect(autostart=not no_autostart)
    with client:
        for session in sessions:
            removed = RemovedSession.model_validate(client.delete(f"/sessions/{segment(session)}"))
            if as_json:
                print_json_line(removed.model_dump())
            else:
                shared = f"; {removed.messages_shared} stay in other sessions" if removed.messages_shared else ""
                kv = f"; {count(removed.kv_blocks)} blocks of KV, {size(removed.kv_bytes)}" if removed.kv_blocks else ""
                say(f"removed {removed.session}: {removed.messages_removed} messages deleted{shared}{kv}")
                if removed.memory_turns:
                    say(
                        f"memory holds {count(removed.memory_turns)} turns of it: "
                        f"`akashic mem forget --session {removed.session} --yes`"
                    )
                if removed.kv_left:
                    say(f"its KV isn't gone from the disk yet: {removed.kv_left}")


@app.command()
def hint(
    session: SessionArgument,
    tool_running: Annotated[
        bool | None,
        typer.Option("--tool-running/--no-tool-running", help="The agent waits for a tool, or no longer goes on."),
    ] = None,
    expect: ExpectOption = None,
    as_json: JsonOption = False,
    no_autostart: NoAutostartOption = False,
    home: HomeOption = None,
) -> None:
    """Say when a session's next request is to be expected, so that its KV is in the engine by then."""
    from akashic_cli.client import connect, segment
    from akashic_cli.render.output import print_json, say
    from akashic_cli.render.units import count
    from akashic_daemon.errors import UsageError
    from akashic_daemon.protocol.tiers import LONGEST_HINT_S, Hinted, HintRequest

    if tool_running is None and expect is None:
        raise UsageError(
            f"hinting at session {session!r}: nothing is said of it", hint="add --tool-running, --expect 20s or both"
        )
    if expect is not None and not (expect <= LONGEST_HINT_S and tool_running is not False):
        raise UsageError(
            f"hinting at session {session!r}: it can't be expected then",
            hint="--expect takes at most 1d, and doesn't go with --no-tool-running",
        )
    request = HintRequest(tool_running=tool_running is not False, expect_s=30.0 if expect is None else expect)
    client, _ = connect(autostart=not no_autostart)
    with client:
        done = Hinted.model_validate(client.post(f"/sessions/{segment(session)}/hint", request.model_dump()))
    if as_json:
        print_json(done.model_dump())
    elif done.tokens:
        say(f"{session} is expected; {count(done.tokens)} tokens will be ready")
    else:
        say(f"{session}: {done.detail}")


def _message_text(message: dict[str, Any]) -> str:
    parts = []
    if message.get("thinking"):
        parts.append(f"[thinking] {message['thinking']}")
    if message.get("content"):
        parts.append(str(message["content"]))
    parts += [f"[call {call.get('name')}] {call.get('arguments')}" for call in message.get("tool_calls", ())]
    return "\n".join(parts)
