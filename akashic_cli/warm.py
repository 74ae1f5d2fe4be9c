"""Sessions with their KV: writing the daemon's file, and telling what came of one that was imported."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from akashic_cli.client import connect, segment
from akashic_cli.render.files import write_atomically
from akashic_cli.render.output import say
from akashic_cli.render.units import count, size
from akashic_daemon.errors import AkashicError, StoreUnwritable, UsageError, from_wire
from akashic_daemon.protocol.archive import TAIL_BYTES, Kind, Part, last_part
from akashic_daemon.protocol.native import ImportedKv


def export_warm(session: str, output: Path | None, *, autostart: bool) -> None:
    """Write a session's file to `output`, or to stdout when that is no terminal. Raises what broke it off."""
    if output is None and sys.stdout.isatty():
        raise UsageError(
            f"exporting session {session!r} with its KV: a terminal can't show it", hint="add -o FILE, or pipe it"
        )
    client, _ = connect(autostart=autostart)
    with client, client.download(f"/sessions/{segment(session)}/export", kv="1") as pieces:
        watched = _Watched(session)
        if output is not None:
            write_atomically(output, watched.checked(pieces))
        else:
            _to_stdout(watched.checked(pieces))
    end = watched.end
    where = f" to {output}" if output is not None else ""
    kv = f"{count(end.get('blocks', 0))} blocks of KV ({count(end.get('tokens', 0))} tokens, {size(end.get('kv_bytes', 0))})"
    say(f"wrote {session}{where}: {count(end.get('messages', 0))} messages, {kv}")
    for note in end.get("notes", ()):
        say(f"note: {note}")


def _to_stdout(pieces: Iterable[bytes]) -> None:
    try:
        for piece in pieces:
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise StoreUnwritable(f"writing to stdout: {error.strerror or error}", hint="free space") from error


@dataclass(slots=True)
class _Watched:
    """A file that passes by; `end` is what its last part says."""

    session: str
    end: dict[str, Any] = field(default_factory=dict)

    def checked(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Give the pieces; raise when they don't end as a whole file does."""
        tail = b""
        for piece in pieces:
            tail = (tail + piece)[-TAIL_BYTES:]
            yield piece
        self.end = dict(self._last(tail).head)

    def _last(self, tail: bytes) -> Part:
        last = last_part(tail)
        if last is None:
            raise AkashicError(
                f"exporting session {self.session!r}: the daemon went away before the end",
                hint="`akashic daemon logs` says why",
            )
        if last.kind == Kind.FAIL:
            raise from_wire(dict(last.head))
        return last


def say_kv(kv: ImportedKv) -> None:
    """Tell on stderr what came of a session's KV."""
    if kv.detail:
        say(kv.detail)
        return
    known = f"; {count(kv.known_blocks)} were here already" if kv.known_blocks else ""
    left = f"; {count(kv.left_out_blocks)} left out" if kv.left_out_blocks else ""
    say(f"took {count(kv.blocks)} blocks of KV ({count(kv.tokens)} tokens, {size(kv.kv_bytes)}){known}{left}")
