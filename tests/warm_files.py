"""Files of warm sessions, for tests: turns, exports, imports, and what a file holds."""

from __future__ import annotations

import io
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

from akashic_daemon.protocol import archive
from akashic_daemon.protocol.archive import Damage, Kind, Part
from akashic_daemon.protocol.native import ImportEvent, Reuse, TurnRequest
from akashic_daemon.service import Service
from tiers_service import LONG, on_service

Check = Callable[[Service], Awaitable[None]]


async def turn(service: Service, session: str, text: str = LONG) -> Reuse:
    """Run a turn of a stored session; return what it reused."""
    async with aclosing(service.turn(session, TurnRequest(prompt=text, max_tokens=20))) as events:
        async for event in events:
            if event.kind == "done":
                assert event.reuse is not None
                return event.reuse
    raise AssertionError("the turn ended without an answer")


async def exported(service: Service, session: str) -> bytes:
    """Return a session's file."""
    async with aclosing(service.export_warm(session)) as pieces:
        return b"".join([piece async for piece in pieces])


async def imported(service: Service, path: Path, data: bytes, name: str | None = None) -> ImportEvent:
    """Import a file; return the last event."""
    path.write_bytes(data)
    async with aclosing(service.import_transcript(path, format=None, name=name, label="warm")) as events:
        found = [event async for event in events]
    assert found[-1].kind == "done"
    return found[-1]


def parts_of(data: bytes) -> list[Part]:
    """Return the parts of a file without damage."""
    found = list(archive.read_parts(io.BytesIO(data), "warm"))
    assert not [f for f in found if isinstance(f, Damage)]
    return [f for f in found if isinstance(f, Part)]


def joined(parts: list[Part]) -> bytes:
    """Return a file of these parts."""
    pieces = [piece for p in parts for piece in archive.part(Kind(p.kind), p.head, p.body)]
    return archive.begin() + b"".join(pieces)


def place_of(data: bytes, kind: Kind, number: int = 0) -> int:
    """Return where a part's last byte of what it holds stands."""
    found = [p for p in parts_of(data) if p.kind == kind][number]
    return found.end_bytes - 17


def flipped(data: bytes, at: int) -> bytes:
    """Return the file with one byte changed."""
    return data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]


def file_of(home: Path, *, flags: dict[str, Any] | None = None, turns: int = 2, before: Check | None = None) -> bytes:
    """Return the file of a session with some turns."""
    out: list[bytes] = []

    async def check(service: Service) -> None:
        for _ in range(turns):
            await turn(service, "one")
        if before is not None:
            await before(service)
        out.append(await exported(service, "one"))

    on_service(home, check, flags=flags)
    return out[0]
