"""Memory as lines of JSON, a turn each with all its places of origin; and back. What is derived is made anew."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from akashic_daemon.errors import TranscriptError
from akashic_daemon.memory.chunks import cut_what_is_full
from akashic_daemon.memory.memory import Memory, Said
from akashic_daemon.memory.selection import turns_of
from akashic_daemon.store.memory.rows import Added

FORMAT = "akashic-memory-1"


class _Origin(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    session: str
    reference: str
    event_at_s: float | None = Field(None, allow_inf_nan=False)


class Line(BaseModel):
    """A turn as it is exported. origins: the first is where its order is from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: str = FORMAT
    namespace: str = Field(min_length=1)
    speaker: str
    text: str = Field(min_length=1)
    event_at_s: float | None = Field(None, allow_inf_nan=False)
    origins: tuple[_Origin, ...] = Field(min_length=1)


def exported(memory: Memory, namespaces: Sequence[str] | None = None) -> Iterator[str]:
    """Yield every turn as a line of JSON without its end, in order. Raises NotFound for an unknown namespace."""
    for name in memory.store.namespaces() if namespaces is None else namespaces:
        for turn in turns_of(memory, name):
            found = memory.store.sources_of(turn.id)
            origins = [{"session": s.name, "reference": s.reference, "event_at_s": s.event_at_s} for s in found]
            origins.sort(key=lambda origin: origin["session"] != turn.source)
            line: dict[str, Any] = {
                "format": FORMAT,
                "namespace": name,
                "speaker": turn.speaker,
                "text": turn.text,
                "event_at_s": turn.event_at_s,
                "origins": origins,
            }
            yield json.dumps(line, ensure_ascii=False)


def read_line(text: str, number: int) -> Line:
    """Return what a line says. Raises TranscriptError, naming the line."""
    doing = f"importing memory, line {number}"
    try:
        line = Line.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(p) for p in first["loc"])
        raise TranscriptError(
            f"{doing}: {where + ': ' if where else ''}{first['msg']}", hint="it takes what `akashic mem export` wrote"
        ) from error
    if line.format != FORMAT:
        raise TranscriptError(
            f"{doing}: its format is {line.format[:50]!r}, this program knows {FORMAT}", hint="upgrade akashic"
        )
    return line


def import_lines(memory: Memory, lines: Sequence[Line]) -> Added:
    """Store turns with their origins. Again changes nothing."""
    turn_ids: list[int] = []
    new_ids: list[int] = []
    start = 0
    while start < len(lines):
        first = lines[start]
        end = start + 1
        while end < len(lines) and _is_beside(first, lines[end]):
            end += 1
        run = lines[start:end]
        said = [Said(at.speaker, at.text, at.origins[0].reference, at.event_at_s) for at in run]
        added = memory.add(first.namespace, first.origins[0].session, said)
        turn_ids += added.turn_ids
        new_ids += added.new_ids
        start = end
    for line in lines:
        for origin in line.origins[1:]:
            again = Said(line.speaker, line.text, origin.reference, origin.event_at_s)
            memory.add(line.namespace, origin.session, [again])
    for namespace in {line.namespace for line in lines}:
        cut_what_is_full(memory, namespace)
    return Added(tuple(turn_ids), tuple(new_ids))


def _is_beside(first: Line, other: Line) -> bool:
    return (first.namespace, first.origins[0].session) == (other.namespace, other.origins[0].session)
