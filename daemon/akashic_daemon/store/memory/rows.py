"""What memory's rows mean, as values; and the digest by which a turn is known."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from enum import StrEnum

_EXACT = re.compile(r"[\n\t{}\[\]<>=/\\_;#$`|~^*@]|--|[a-z][A-Z]|\w[.:]\w")
"""Code, paths, identifiers, tables: there every character counts."""


class Relation(StrEnum):
    """How a record stands to another one."""

    SUPERSEDES = "supersedes"
    CONTRADICTS = "contradicts"
    LINK = "link"


@dataclass(frozen=True, slots=True)
class NewTurn:
    """A message as it was said. `reference` names it in its source (a message's digest, a line's id)."""

    speaker: str
    text: str
    reference: str
    event_at_s: float | None = None
    length_tokens: int = 0
    terms: tuple[str, ...] = ()
    """Index terms in the order of the text, repeats kept."""
    traits: int = 0
    """Bits that mean something to the index only."""


@dataclass(frozen=True, slots=True)
class Source:
    """One place where a turn was said."""

    name: str
    reference: str
    event_at_s: float | None


@dataclass(frozen=True, slots=True)
class Turn:
    """A stored turn. `previous_id` is the one said before it in its first source."""

    id: int
    namespace: str
    source: str
    previous_id: int | None
    chunk_id: int | None
    speaker: str
    text: str
    event_at_s: float | None
    length_tokens: int


@dataclass(frozen=True, slots=True)
class Added:
    """What became of added turns: the id of each, in order, and the ids that are new."""

    turn_ids: tuple[int, ...]
    new_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Turns in a row of one namespace. It takes turns until it is sealed."""

    id: int
    namespace: str
    length_tokens: int
    created_at_s: float
    sealed_at_s: float | None
    reconciled_at_s: float | None
    estimated_rho: float | None


@dataclass(frozen=True, slots=True)
class Cut:
    """Turns in a row that make a chunk which is sealed, with its estimated rho."""

    turn_ids: tuple[int, ...]
    estimated_rho: float


@dataclass(frozen=True, slots=True)
class ChunkVersion:
    """A chunk's text as a compactor left it; version 1 is the first. rho: its length over the raw length."""

    chunk_id: int
    version: int
    text: str
    rho: float
    made_by: str
    made_at_s: float


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A statement that reconciliation wrote, with the turns it rests on (at least one).

    It says that `subject`'s `slot` is `value`, or isn't; all three are empty when that isn't known. changes: its words
    say that it wasn't always so.
    """

    text: str
    turn_ids: tuple[int, ...]
    subject: str = ""
    slot: str = ""
    event_at_s: float | None = None
    value: str = ""
    is_negated: bool = False
    changes: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """A stored statement. It is current until another one supersedes it."""

    id: int
    namespace: str
    chunk_id: int | None
    text: str
    subject: str
    slot: str
    event_at_s: float | None
    made_by: str
    made_at_s: float
    turn_ids: tuple[int, ...]
    is_current: bool
    value: str = ""
    is_negated: bool = False
    changes: bool = False


@dataclass(frozen=True, slots=True)
class RecordRelation:
    """`record_id` stands in `relation` to `other_id`; of a contradiction it is the newer one."""

    record_id: int
    other_id: int
    relation: Relation
    reason: str
    made_at_s: float


@dataclass(frozen=True, slots=True)
class NewRelation:
    """How the new record of a number stands to another one: a stored record's id, or a new record's number."""

    record: int
    relation: Relation
    reason: str
    other_id: int | None = None
    other_record: int | None = None
    is_newer: bool = True
    """Whether the new record is the first of the pair."""


@dataclass(frozen=True, slots=True)
class IndexRow:
    """What a search index needs of a turn. vector is None when the asked embedder has made none yet."""

    turn_id: int
    previous_id: int | None
    chunk_id: int | None
    source_id: int
    speaker: str
    event_at_s: float | None
    length_tokens: int
    traits: int
    term_ids: bytes
    vector: bytes | None


@dataclass(frozen=True, slots=True)
class EmbedderState:
    """What an embedder knows of a namespace: how many turns were embedded alike, and a body in its owner's form."""

    namespace: str
    turn_count: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Retold:
    """Chunks whose compacted texts hold words of turns on which they don't rest, or name them; and records that hold some."""

    chunk_ids: frozenset[int] = frozenset()
    record_ids: frozenset[int] = frozenset()


NOWHERE = Retold()


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What forgetting removes, or removed: the turns, what was derived from them, and the chunks whose text changes."""

    turn_ids: tuple[int, ...]
    record_ids: tuple[int, ...]
    changed_chunk_ids: tuple[int, ...]
    emptied_chunk_ids: tuple[int, ...]


def turn_digest(speaker: str, text: str) -> str:
    """Return the tagged digest of what was said and by whom; when and where don't take part."""
    said = speaker.encode("utf-8", "surrogatepass")
    body = len(said).to_bytes(8, "little") + said + text.encode("utf-8", "surrogatepass")
    return "turn1:" + hashlib.blake2b(body, digest_size=16).hexdigest()


def likeness(speaker: str, text: str) -> str:
    """Return the tagged digest of a sentence but for its case, spaces and end; '' for text in which those may mean something.

    Questions keep their mark, and with it another likeness than statements.
    """
    if _EXACT.search(text):
        return ""
    folded = " ".join(text.casefold().split()).rstrip(" .!…")
    return "like1:" + turn_digest(speaker, folded) if folded else ""


def storable(text: str) -> str:
    """Return the text with halves of surrogate pairs, which no file can hold, as U+FFFD."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
