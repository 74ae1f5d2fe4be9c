"""What the block store is given and gives back. Nothing here knows where a record lies.

A record belongs to one group or more (a session, a memory namespace), at a sequence number in each: blocks of a prefix
that two sessions share are stored once. It is gone when the last of its groups is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

Bytes = bytes | bytearray | memoryview


class Kind(StrEnum):
    """What a record holds. UNKNOWN is never stored: a damaged row's kind is read as it, and its checksum is wrong."""

    KV = "kv"
    CHUNK = "chunk"
    UNKNOWN = "?"


@dataclass(frozen=True, slots=True)
class Record:
    """What is to be stored. `key` is a tagged digest that names the content for ever; the payload may be empty."""

    key: str
    kind: Kind
    group: str
    sequence: int
    fingerprint: str
    payload: Bytes
    token_ids: bytes | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """What the index knows of a stored record. `size_bytes` is the payload's."""

    key: str
    kind: Kind
    fingerprint: str
    token_ids: bytes | None
    size_bytes: int
    created_at_s: float
    read_at_s: float
    read_count: int


class MissReason(StrEnum):
    """Why a record isn't given."""

    ABSENT = "absent"
    DAMAGED = "damaged"
    UNREADABLE = "unreadable"
    BUFFER = "buffer"


@dataclass(frozen=True, slots=True)
class Found:
    """A record whose every byte was verified. `payload` is a view of the caller's buffer where one was given."""

    entry: Entry
    payload: memoryview


@dataclass(frozen=True, slots=True)
class Miss:
    """A record that can't be given, and why."""

    key: str
    reason: MissReason
    detail: str


class RefusalReason(StrEnum):
    """Why a batch wasn't stored."""

    BUDGET = "budget"
    UNWRITABLE = "unwritable"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Nothing of the batch was stored. For a budget: how much it needs, and how much is free."""

    reason: RefusalReason
    detail: str
    needed_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Put:
    """What became of a batch: how many were new, how many were stored before, or why none was stored."""

    stored: int = 0
    known: int = 0
    stored_bytes: int = 0
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True)
class Removed:
    """Which records went, and the bytes that they took. Compaction gives those of shared extents back."""

    records: int = 0
    stored_bytes: int = 0
    keys: tuple[str, ...] = ()

    def __add__(self, other: Removed) -> Removed:
        return Removed(self.records + other.records, self.stored_bytes + other.stored_bytes, self.keys + other.keys)


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction did.

    `left` names stale extents for whose live records the budget has no room, or of which something couldn't be read.
    """

    extents_before: int = 0
    extents_after: int = 0
    moved_bytes: int = 0
    freed_bytes: int = 0
    quarantined: int = 0
    left: Sequence[int] = ()
    held_by_readers: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Stats:
    """What the store holds and has done since it was made. Bytes of records are payload bytes."""

    budget_bytes: int
    bytes_used: int
    dead_bytes: int
    index_bytes: int
    records: int
    groups: int
    extents: int
    never_read_bytes: int
    quarantined_now: int
    counters: dict[str, int] = field(default_factory=dict)
