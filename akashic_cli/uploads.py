"""Send a transcript to the daemon's importer and read what it made of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from akashic_cli.client import Client, segment
from akashic_cli.render.output import err, say
from akashic_daemon.errors import AkashicError, UsageError
from akashic_daemon.protocol.memory import Remembered
from akashic_daemon.protocol.native import ImportedSession, ImportEvent

CHUNK_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Source:
    """Bytes of a transcript: an open file, what it is called, and its size if that is known. `head` was read ahead."""

    file: BinaryIO
    label: str
    size_bytes: int | None
    head: bytes = b""


def open_source(name: str) -> Source:
    """Open a file, or stdin for `-`. Raises UsageError when it can't be read."""
    if name == "-":
        return Source(sys.stdin.buffer, "stdin", None)
    try:
        file = open(os.path.expanduser(name), "rb")  # noqa: SIM115 - the process ends soon after it is read
    except OSError as error:
        raise UsageError(f"reading {name}: {error.strerror}", hint="name a readable file, or - for stdin") from error
    return Source(file, name, os.fstat(file.fileno()).st_size)


def upload(client: Client, source: Source, *, transcript_format: str | None, name: str | None) -> ImportEvent:
    """Import a transcript, with a bar on stderr; return the final event. Raises what the importer raises."""
    from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn

    label = source.label.encode("utf-8", "replace").decode()  # a file name may hold bytes that no URL can
    given = (("format", transcript_format), ("name", name), ("file", label))
    params = {key: value for key, value in given if value is not None}
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    console = err()
    done: ImportEvent | None = None
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"sending {source.label}", total=source.size_bytes)
        sent_bytes = 0

        def advance(count_bytes: int) -> None:
            nonlocal sent_bytes
            sent_bytes += count_bytes
            bar.update(task, completed=sent_bytes)

        content = chunks_of(source, advance)
        with client.stream("POST", "/import", content=content, params=params) as events:
            for raw in events:
                event = ImportEvent.model_validate(raw)
                if event.kind == "done":
                    done = event
                else:
                    text = f"reading {source.label}: {event.messages:,} messages"
                    # Only now is the size of what came through a pipe known.
                    bar.update(task, description=text, completed=event.read_bytes, total=sent_bytes)
    if done is None:
        raise AkashicError(
            f"importing {source.label}: the answer ended without a result", hint="`akashic daemon logs` says more"
        )
    return done


def chunks_of(source: Source, sent: Callable[[int], None] = lambda _: None) -> Iterator[bytes]:
    """Give a source's bytes; `sent` hears how many went out."""
    if source.head:
        yield source.head
        sent(len(source.head))
    while chunk := source.file.read(CHUNK_BYTES):
        yield chunk
        sent(len(chunk))


def remember(client: Client, session: str, namespace: str | None) -> Remembered:
    """Take a stored session into long-term memory."""
    body = {} if namespace is None else {"namespace": namespace}
    path = f"/memory/sessions/{segment(session)}"
    return Remembered.model_validate(client.long("POST", path, f"remembering session {session}", body=body))


def say_problems(event: ImportEvent) -> None:
    """Tell on stderr which lines could not be used."""
    for problem in event.problems:
        line = "" if problem.first_line is None else f", first in line {problem.first_line}"
        say(f"warning: {problem.reason}: {problem.count}\N{MULTIPLICATION SIGN}{line}")


def main_session(event: ImportEvent, label: str) -> ImportedSession:
    """Return the first main conversation of an import, saying so when there were others."""
    if not event.sessions:
        raise UsageError(
            f"importing {label}: it holds no conversation", hint="`--format NAME` if its format wasn't recognised"
        )
    chosen = next((s for s in event.sessions if s.is_main), event.sessions[0])
    if len(event.sessions) > 1:
        say(f"note: {label} holds {len(event.sessions)} conversations; going on with the main one, {chosen.session}")
    return chosen
