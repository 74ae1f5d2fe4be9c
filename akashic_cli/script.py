"""Op scripts on the client's side: reading them with the files that they name, and showing their course."""

from __future__ import annotations

import sys
from pathlib import Path

from akashic_cli.client import Client, segment
from akashic_cli.render.context import print_context, totals
from akashic_cli.render.output import print_json_line, print_table, printable, say
from akashic_cli.render.units import count
from akashic_daemon.errors import AkashicError, UsageError
from akashic_daemon.program.script import AppendStep, FromFile, ReplaceStep, parse_script
from akashic_daemon.protocol.context import ScriptEvent, ScriptRequest

_MOST_BYTES = 32 << 20


def read_source(path: Path, what: str) -> str:
    """Return a text file's content, of stdin for `-`. Raises UsageError."""
    name = "stdin" if str(path) == "-" else str(path)
    try:
        if name == "stdin":
            data = sys.stdin.buffer.read(_MOST_BYTES + 1)
        else:
            with path.open("rb") as file:
                data = file.read(_MOST_BYTES + 1)
        text = data.decode("utf-8")
    except OSError as error:
        raise UsageError(f"reading {what} from {name}: {error.strerror or error}", hint="name another file") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"reading {what} from {name}: it is not UTF-8", hint="convert it, e.g. with iconv") from error
    if len(data) > _MOST_BYTES:
        raise UsageError(f"reading {what} from {name}: it is over {_MOST_BYTES:,} bytes", hint="split it")
    return text


def read_script(path: Path) -> tuple[str, dict[str, str]]:
    """Return a script and the text of each file that it names, relative to the working folder. Raises ScriptError."""
    source = read_source(path, "the script")
    files: dict[str, str] = {}
    for statement in parse_script(source):
        content = statement.content if isinstance(statement, AppendStep | ReplaceStep) else None
        if isinstance(content, FromFile) and content.path not in files:
            files[content.path] = read_source(Path(content.path), f"what line {statement.line} names")
    return source, files


def play(client: Client, session: str, request: ScriptRequest, *, as_json: bool) -> None:
    """Run a script in the daemon: answers and drawings on stdout, its course on stderr; a dry run's plan on stdout."""
    path = f"/sessions/{segment(session)}/script"
    steps: list[ScriptEvent] = []
    failed: AkashicError | None = None
    ended = False
    with client.stream("POST", path, body=request.model_dump(exclude_none=True)) as events:
        try:
            for raw in events:
                event = ScriptEvent.model_validate(raw)
                ended = ended or event.kind == "done"
                if as_json:
                    print_json_line(raw)
                elif request.dry_run:
                    steps += [event] if event.kind == "step" else []
                else:
                    _show(event)
        except AkashicError as error:
            failed = error
    if steps:
        _print_plan(steps)
    if failed is not None:
        raise failed
    if not ended:
        raise AkashicError(
            f"running a script on session {session}: it ended before its last statement",
            hint="`akashic daemon logs` says why; the session is as it was",
        )


def _show(event: ScriptEvent) -> None:
    if event.kind == "text":
        print(printable(event.text), end="", flush=True)
    elif event.kind == "done":
        say(f"session {event.session}" + (f": {totals(event.context)}" if event.context is not None else ""))
    elif event.kind == "step":
        if event.reuse is not None:
            print(flush=True)
        say(f"{event.line}: {event.statement} \N{MIDDLE DOT} {_effect(event)}")
        for note in event.notes:
            say(f"   note: {note}")
        if event.context is not None:
            print_context(event.context)


def _effect(event: ScriptEvent) -> str:
    parts = (
        [f"reused {count(event.reuse.reused_tokens)}, computed {count(event.reuse.computed_tokens)}"]
        if event.reuse
        else []
    )
    for name, tokens in (
        ("appended", event.appended_tokens),
        ("dropped", event.dropped_tokens),
        ("moved", event.moved_tokens),
    ):
        parts += [f"{name} {count(tokens)}"] if tokens else []
    return ", ".join([*parts, f"{count(event.visible_tokens)} visible, next position {count(event.next_position)}"])


def _print_plan(steps: list[ScriptEvent]) -> None:
    columns = ("LINE", "STATEMENT", "APPENDS", "DROPS", "MOVES", "VISIBLE", "NEXT", "SAVES")
    rows = [
        (
            str(step.line),
            step.statement,
            *(count(n) if n else "" for n in (step.appended_tokens, step.dropped_tokens, step.moved_tokens)),
            count(step.visible_tokens),
            count(step.next_position),
            count(step.saved_tokens) if step.saved_tokens else "",
        )
        for step in steps
    ]
    print_table(columns, rows, right=(0, 2, 3, 4, 5, 6, 7))
    for step in steps:
        for note in step.notes:
            say(f"line {step.line}: note: {note}")
        for failure in step.failures:
            say(f"line {step.line}: would fail: {failure}")
    saved = sum(step.saved_tokens for step in steps)
    if saved:
        say(f"saves {count(saved)} tokens that editing the texts instead would compute again")
