"""What memory answers, as values: what was found, what a chunk holds, where a statement comes from, what is forgotten."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from akashic_daemon.errors import BadRequest
from akashic_daemon.memory.extents import Place
from akashic_daemon.store.memory.rows import Chunk, ChunkVersion, Forgotten, Record, RecordRelation, Source, Turn

_REFERENCE = re.compile(r"(?P<kind>[tcr])(?P<number>[1-9]\d{0,17})")
_KINDS = {"t": "turn", "c": "chunk", "r": "record"}


@dataclass(frozen=True, slots=True)
class Reference:
    """What an id such as t12 (a turn), c3 (a chunk) or r5 (a record) names."""

    kind: str
    number: int


def parse_reference(text: str) -> Reference:
    """Read an id as people write it. Raises BadRequest."""
    match = _REFERENCE.fullmatch(text.strip())
    if match is None:
        raise BadRequest(
            f"reading the memory id {text[:100]!r}: it isn't one",
            hint="write t12 for a turn, c3 for a chunk, r5 for a record; `akashic mem inspect` shows them",
        )
    return Reference(match["kind"], int(match["number"]))


def parse_record(text: str) -> int:
    """Read a record's id. Raises BadRequest, also for that of a turn or a chunk."""
    reference = parse_reference(text)
    if reference.kind != "r":
        raise BadRequest(
            f"reading the record's id {text[:100]!r}: it is a {_KINDS[reference.kind]}'s",
            hint="records are written r5; `akashic mem history` shows them",
        )
    return reference.number


@dataclass(frozen=True, slots=True)
class Remembered:
    """What became of turns that were given: how many are new, known already, and left out as recalled text."""

    turn_ids: tuple[int, ...]
    new_ids: tuple[int, ...]
    recalled: int = 0

    @property
    def known(self) -> int:
        """How many were there already; each got another place of origin."""
        return len(self.turn_ids) - len(self.new_ids)


@dataclass(frozen=True, slots=True)
class Found:
    """A turn that fits a question, where it was said, and what its score is made of (empty unless asked for)."""

    turn: Turn
    score: float
    sources: tuple[Source, ...]
    parts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recalled:
    """What is put before a question: marked text, and what stands in it, in the order in time. Empty: nothing fits."""

    text: str
    found: tuple[Found, ...]
    length_tokens: int


@dataclass(frozen=True, slots=True)
class ChunkCard:
    """All that is known of a chunk. links: other chunks with their weights. place: where it lies, if in an extent."""

    chunk: Chunk
    turns: tuple[Turn, ...]
    versions: tuple[ChunkVersion, ...]
    records: tuple[Record, ...]
    links: dict[int, float]
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class History:
    """Where a turn, a chunk or a record comes from: the turns, their origins, the records, how those stand."""

    turns: tuple[Turn, ...]
    sources: dict[int, tuple[Source, ...]]
    versions: tuple[ChunkVersion, ...]
    records: tuple[Record, ...]
    relations: tuple[RecordRelation, ...]


@dataclass(frozen=True, slots=True)
class Selector:
    """What is to be forgotten: all that every given field agrees on. Raises BadRequest when nothing is given.

    ids: of turns, chunks or records; any of them. session: a source. query: what a search for it finds, at most `limit`.
    Times: of the event, the second excluded.
    """

    ids: tuple[str, ...] = ()
    session: str | None = None
    query: str | None = None
    after_s: float | None = None
    before_s: float | None = None
    namespaces: tuple[str, ...] | None = None
    limit: int = 20

    def __post_init__(self) -> None:
        if (
            not self.ids
            and self.namespaces is None
            and all(value is None for value in (self.session, self.query, self.after_s, self.before_s))
        ):
            raise BadRequest(
                "forgetting: nothing says what", hint="name an id, a session, a query, a time or a namespace"
            )


@dataclass(frozen=True, slots=True)
class Forgetting:
    """What forgetting removes, or removed: the turns themselves too, so that a dry run can show them."""

    gone: Forgotten
    turns: tuple[Turn, ...]
    is_done: bool


@dataclass(frozen=True, slots=True)
class NamespaceStats:
    """What a namespace holds. rho: estimated mean of the sealed chunks, and actual mean of the compacted ones."""

    namespace: str
    turns: int
    length_tokens: int
    chunks: int
    waiting_chunks: int
    records: int
    estimated_rho: float | None
    actual_rho: float | None


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """What memory holds, and what its upkeep did. index_bytes: of the arrays in RAM.

    extent_bytes: of chunks that stand whole in extents. write_amplification: bytes written there over bytes stored.
    """

    namespaces: tuple[NamespaceStats, ...] = ()
    database_bytes: int = 0
    index_bytes: int = 0
    compactor: str = ""
    model_tokens: int = 0
    problems: tuple[str, ...] = ()
    extent_bytes: int = 0
    write_amplification: float = 1.0


@dataclass(frozen=True, slots=True)
class ExtentView:
    """An extent, and the chunks of a namespace that lie in it, in their order."""

    namespace: str
    extent: int
    chunk_ids: tuple[int, ...]
