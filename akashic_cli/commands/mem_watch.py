"""`akashic mem watch`: logs of other agents go into memory while they are written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from akashic_cli.options import HomeOption, JsonOption, NoAutostartOption


def watch(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR",
            help="Folders with logs, such as ~/.claude/projects and ~/.codex/sessions; or single files.",
        ),
    ],
    include: Annotated[
        list[str] | None,
        typer.Option("--include", metavar="GLOB", help="Names of the files to read in folders; *.jsonl when absent."),
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", help="Where it is remembered [memory.namespace].")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Read what is there and leave.")] = False,
    quiet: Annotated[
        float, typer.Option("--quiet", min=0, max=86400, help="Seconds after which an open message counts as whole.")
    ] = 30.0,
    as_json: JsonOption = False,
    no_autostart: NoAutostartOption = False,
    home: HomeOption = None,
) -> None:
    """Follow logs of Claude Code, Codex and others into memory, each line once, until Ctrl-C.

    What was read is remembered: after a restart it goes on where it was, also when a log was renamed meanwhile. Files of text are
    read line by line. --json prints what happens as NDJSON.
    """
    from akashic_cli.client import connect
    from akashic_cli.render.output import print_json_line
    from akashic_daemon.protocol.memory_watch import WatchEvent

    # The daemon's working folder is another.
    body = {"paths": [str(Path(os.path.expanduser(path)).absolute()) for path in paths], "once": once, "quiet_s": quiet}
    body |= {"include": include} if include else {}
    body |= {"namespace": namespace} if namespace else {}
    client, _ = connect(autostart=not no_autostart)
    with client, client.stream("POST", "/memory/watch", body=body) as events:
        talk = _Talk()
        for raw in events:
            event = WatchEvent.model_validate(raw)
            if as_json:
                print_json_line(event.model_dump(exclude={"error"}))
            else:
                talk.tell(event)
        if once and not as_json:
            talk.total()


class _Talk:
    """What a person is told: one line a file and burst, not one a step."""

    def __init__(self) -> None:
        self._new: dict[str, int] = {}
        self._all_new = self._all_known = 0

    def tell(self, event: object) -> None:
        """Say what is worth saying of an event."""
        from akashic_cli.render.output import say
        from akashic_cli.render.units import count, size
        from akashic_daemon.protocol.memory_watch import WatchEvent

        assert isinstance(event, WatchEvent)
        if event.kind == "watching":
            say(f"watching; {count(event.files)} files to look at" + (f" ({event.reason})" if event.reason else ""))
            if not event.files:
                say("no file there has a name that is read; --include names others, such as '*.log'")
        elif event.kind == "problem":
            line = "" if event.line is None else f", line {event.line}"
            say(f"warning: {event.path}{line}: {event.reason}")
        elif event.kind == "read":
            self._all_new += event.new
            self._all_known += event.known
            self._new[event.path] = self._new.get(event.path, 0) + event.new
            if event.behind_bytes == 0 and (new := self._new.pop(event.path)):
                say(f"{event.path}: {count(new)} new turns")
            elif event.behind_bytes > _FAR_BEHIND_BYTES:
                say(f"{event.path}: {count(self._new[event.path])} new turns, {size(event.behind_bytes)} to go")

    def total(self) -> None:
        """Say what all of it was."""
        from akashic_cli.render.output import say
        from akashic_cli.render.units import count

        say(f"{count(self._all_new)} new turns, {count(self._all_known)} known ones")


_FAR_BEHIND_BYTES = 16 << 20
