"""Chunks as records of a block store: those that are found together lie together in one extent.

The database is the truth; what stands here is a sealed chunk whole, its turns and its newest text, to be read in one go.
A chunk has at most one record, and none while it waits for reconciliation. Whatever the layout, the records are the same.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from akashic_daemon.errors import StoreUnwritable
from akashic_daemon.memory.placement import is_due, propose
from akashic_daemon.store.blocks.compaction import compact
from akashic_daemon.store.blocks.layout import FILE_HEADER_BYTES, RECORD_HEADER_BYTES
from akashic_daemon.store.blocks.opening import open_block_store
from akashic_daemon.store.blocks.record import Found, Kind, Record
from akashic_daemon.store.blocks.store import BlockStore
from akashic_daemon.store.memory.rows import ChunkVersion, Turn
from akashic_daemon.types import Clock

EXTENT_BYTES = 64 << 10
"""About a dozen chunks of text: what a question finds of a namespace is then some files, or few."""
_BUDGET_BYTES = 1 << 44
"""No bound of its own: memory keeps what it is given until it is forgotten."""
_FINGERPRINT = "memory1"
_TAG = "chunk1"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a chunk's record lies, and the chunks beside it in the same extent."""

    extent: int
    offset_bytes: int
    neighbours: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Regrouped:
    """What became of a namespace's layout. moved_bytes is 0 when the new one wasn't worth its writes."""

    namespace: str
    fan_out_before: float
    fan_out_after: float
    moved_bytes: int


def open_extents(folder: Path, clock: Clock, *, extent_bytes: int = EXTENT_BYTES) -> ChunkExtents:
    """Open or make the store. Raises what `open_block_store` raises."""
    return ChunkExtents(open_block_store(folder, budget_bytes=_BUDGET_BYTES, clock=clock, extent_bytes=extent_bytes))


class ChunkExtents:
    """An open store of chunks. Use it on memory's thread. Methods raise StoreError when the disk refuses."""

    def __init__(self, store: BlockStore) -> None:
        self._store = store
        self._known: dict[str, dict[int, tuple[str, int]]] = {}
        """By namespace and chunk: the record's key and size."""
        self._bytes: dict[str, int] = {}

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def keep(self, namespace: str, chunk_id: int, turns: Sequence[Turn], version: ChunkVersion | None) -> None:
        """Store a chunk as it is now; what was stored of it before goes."""
        payload = _payload(turns, version)
        digest = hashlib.blake2b(payload, digest_size=16).hexdigest()
        key = f"{_TAG}:{chunk_id}:{digest}"
        old = self._keys(namespace).get(chunk_id)
        done = self._store.put([Record(key, Kind.CHUNK, namespace, chunk_id, _FINGERPRINT, payload)])
        if done.refusal is not None:
            raise StoreUnwritable(
                f"keeping chunk c{chunk_id} of memory {namespace} in an extent: {done.refusal.detail}",
                hint="free disk space; the chunk stands in the database",
            )
        if old is not None and old[0] != key:
            self._store.delete([old[0]])
        self._keys(namespace)[chunk_id] = key, len(payload)
        self._bytes[namespace] += len(payload) - (0 if old is None else old[1])

    def read(self, namespace: str, chunk_id: int) -> bytes | None:
        """Return a chunk's record, verified; None when there is none, or it isn't what was written."""
        known = self._keys(namespace).get(chunk_id)
        found = None if known is None else self._store.get(known[0])
        return bytes(found.payload) if isinstance(found, Found) else None

    def drop(self, namespace: str, chunk_ids: Iterable[int]) -> None:
        """Remove chunks; when it returns, no file of the store has their text, nor that of what was removed before."""
        keys = self._keys(namespace)
        gone = {chunk_id: keys[chunk_id] for chunk_id in chunk_ids if chunk_id in keys}
        if gone:
            self._store.delete(key for key, _ in gone.values())
            for chunk_id, (_, size_bytes) in gone.items():
                del keys[chunk_id]
                self._bytes[namespace] -= size_bytes
        # Also when nothing goes: a crash or a full disk may have come between the last removal and its wiping.
        compact(self._store)

    def chunks(self, namespace: str) -> set[int]:
        """Return which chunks of a namespace are stored."""
        return set(self._keys(namespace))

    def layout(self, namespace: str) -> dict[int, list[int]]:
        """Return each extent's chunks of a namespace in their order; small ones stand in the index, in none."""
        found: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for key, (extent, offset) in self._store.places(namespace).items():
            found[extent].append((offset, _chunk_of(key)))
        return {extent: [chunk for _, chunk in sorted(here)] for extent, here in sorted(found.items())}

    def place(self, namespace: str, chunk_id: int) -> Place | None:
        """Return where a chunk lies; None when it is in no extent."""
        for key, (extent, offset) in self._store.places(namespace).items():
            if _chunk_of(key) == chunk_id:
                beside = self.layout(namespace)[extent]
                return Place(extent, offset, tuple(other for other in beside if other != chunk_id))
        return None

    @property
    def size_bytes(self) -> int:
        """What the records and their extents take."""
        return self._store.bytes_used

    @property
    def write_amplification(self) -> float:
        """Bytes written, by storing and by moving, over bytes stored."""
        counters = self._store.counters()
        written = counters.get("written_bytes", 0)
        return (written + counters.get("compacted_bytes", 0)) / written if written else 1.0

    # -- placement ---------------------------------------------------------------------------------------------

    def is_due(self, namespace: str) -> bool:
        """Tell if a namespace has grown enough since it was last regrouped, so that all moves write less than twice it."""
        self._keys(namespace)
        return is_due(self._bytes[namespace], self._store.counters().get(_regrouped(namespace), 0))

    def regroup(
        self, namespace: str, links: Mapping[int, Sequence[int]], logged: Iterable[Sequence[int]]
    ) -> Regrouped | None:
        """Lay a namespace's chunks so that those found together lie together; None when they lie in one extent.

        links: the chunks nearest to each, the nearest first. logged: chunks that one search found. The new layout is
        taken when results that it wasn't made from touch 5 % fewer extents.
        """
        known = self._keys(namespace)
        layout = self.layout(namespace)
        placed = [chunk for extent in layout.values() for chunk in extent]
        numbers = {chunk: number for number, chunk in enumerate(sorted(placed))}
        if len(layout) < 2:
            return None
        sizes = [known[chunk][1] + RECORD_HEADER_BYTES for chunk in sorted(placed)]
        proposal = propose(
            [[numbers[chunk] for chunk in extent] for extent in layout.values()],
            sizes,
            [[numbers[near] for near in links.get(chunk, ()) if near in numbers] for chunk in sorted(placed)],
            [of_found for found in logged if len(of_found := [numbers[c] for c in found if c in numbers]) > 1],
            self._store.extent_bytes - FILE_HEADER_BYTES,
        )
        moved = 0
        if proposal.is_accepted:
            keys = [known[chunk][0] for chunk in sorted(placed)]
            blocks = [[keys[number] for number in block] for block in proposal.layout]
            moved = compact(self._store, also=list(layout), layout=blocks).moved_bytes
        self._store.set_counters({_regrouped(namespace): self._bytes[namespace]})
        return Regrouped(namespace, proposal.fan_out_before, proposal.fan_out_after, moved)

    def _keys(self, namespace: str) -> dict[int, tuple[str, int]]:
        """Return the key and the size of each chunk; read once, because a namespace may have many."""
        if namespace not in self._known:
            entries = self._store.entries(namespace)
            self._known[namespace] = {_chunk_of(e.key): (e.key, e.size_bytes) for e in entries}
            self._bytes[namespace] = sum(e.size_bytes for e in entries)
        return self._known[namespace]


def _regrouped(namespace: str) -> str:
    return f"regrouped_bytes {namespace}"


def _chunk_of(key: str) -> int:
    return int(key.split(":")[1])


def _payload(turns: Sequence[Turn], version: ChunkVersion | None) -> bytes:
    body = {
        "turns": [[turn.id, turn.speaker, turn.text, turn.event_at_s] for turn in turns],
        "text": None if version is None else version.text,
    }
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
