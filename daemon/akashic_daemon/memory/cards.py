"""What memory holds, put together for people: a chunk's card, an id's history, figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from akashic_daemon.memory.answers import ChunkCard, ExtentView, History, NamespaceStats, parse_reference
from akashic_daemon.memory.memory import Memory
from akashic_daemon.memory.selection import turns_named
from akashic_daemon.store.memory.rows import Chunk, Record, RecordRelation


def chunks(memory: Memory, namespaces: Sequence[str], session: str | None) -> list[Chunk]:
    """Return chunks in order; with a session those that hold turns of it. Raises NotFound."""
    found = [chunk for name in namespaces for chunk in memory.store.chunks_of(name)]
    if session is None:
        return found
    held = {turn.chunk_id for name in namespaces for turn in memory.store.turns_of_source(name, session)}
    return [chunk for chunk in found if chunk.id in held]


def card(memory: Memory, chunk_id: int) -> ChunkCard:
    """Return all that is known of a chunk. Raises NotFound."""
    store = memory.store
    chunk = store.chunk(chunk_id)
    return ChunkCard(
        chunk,
        tuple(store.turns_of_chunk(chunk_id)),
        tuple(store.chunk_versions(chunk_id)),
        tuple(store.records_of_chunk(chunk_id)),
        store.linked_chunks(chunk_id),
        None if memory.extents is None else memory.extents.place(chunk.namespace, chunk_id),
    )


def extent_figures(memory: Memory) -> tuple[int, float]:
    """Return the bytes of chunks in extents, and the bytes written there over those stored."""
    return (0, 1.0) if memory.extents is None else (memory.extents.size_bytes, memory.extents.write_amplification)


def extents(memory: Memory, namespaces: Sequence[str]) -> list[ExtentView]:
    """Return which chunks lie in which extent; none where chunks don't stand in extents."""
    if memory.extents is None:
        return []
    return [
        ExtentView(name, extent, tuple(chunk_ids))
        for name in namespaces
        for extent, chunk_ids in memory.extents.layout(name).items()
    ]


def history(memory: Memory, text: str) -> History:
    """Return where a turn, a chunk or a record comes from. Raises NotFound, BadRequest."""
    store = memory.store
    reference = parse_reference(text)
    ids = turns_named(memory, text)
    turns = store.turns(ids)
    records: Iterable[Record] = (
        [store.record(reference.number)] if reference.kind == "r" else store.records_of_turns(ids)
    )
    kept = {record.id: record for record in records}
    relations: dict[tuple[int, int, str], RecordRelation] = {}
    for record_id in list(kept):
        for relation in store.relations_of(record_id):
            relations[relation.record_id, relation.other_id, relation.relation.value] = relation
            other = relation.other_id if relation.record_id == record_id else relation.record_id
            if other not in kept:
                kept[other] = store.record(other)
    versions = store.chunk_versions(reference.number) if reference.kind == "c" else []
    return History(
        tuple(turns.values()),
        {turn_id: tuple(store.sources_of(turn_id)) for turn_id in turns},
        tuple(versions),
        tuple(sorted(kept.values(), key=lambda record: (record.event_at_s or 0.0, record.id))),
        tuple(relations.values()),
    )


def stats(memory: Memory) -> list[NamespaceStats]:
    """Return what each namespace holds."""
    return [_stats_of(memory, name) for name in memory.store.namespaces()]


def _stats_of(memory: Memory, namespace: str) -> NamespaceStats:
    figures = memory.store.figures(namespace)
    return NamespaceStats(namespace, *figures)
