"""What memory answers, as wire models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from akashic_daemon.memory import answers
from akashic_daemon.protocol import memory as wire
from akashic_daemon.store.memory.rows import Chunk, ChunkVersion, Record, Source, Turn


def turn_view(turn: Turn, sources: Iterable[Source] = ()) -> wire.TurnView:
    """Return a turn with the places where it was said."""
    return wire.TurnView(
        id=f"t{turn.id}",
        namespace=turn.namespace,
        source=turn.source,
        speaker=turn.speaker,
        text=turn.text,
        event_at_s=turn.event_at_s,
        length_tokens=turn.length_tokens,
        chunk=None if turn.chunk_id is None else f"c{turn.chunk_id}",
        origins=[wire.Origin(source=s.name, reference=s.reference, event_at_s=s.event_at_s) for s in sources],
    )


def found_view(found: answers.Found) -> wire.TurnView:
    """Return what was found, with its score."""
    view = turn_view(found.turn, found.sources)
    return view.model_copy(update={"score": found.score, "parts": dict(found.parts)})


def remembered(done: answers.Remembered, namespace: str | None) -> wire.Remembered:
    """Return what became of turns."""
    return wire.Remembered(
        namespace=namespace,
        new=len(done.new_ids),
        known=done.known,
        recalled=done.recalled,
        turns=[f"t{turn}" for turn in done.turn_ids],
    )


def chunk_summary(chunk: Chunk, place: str = "") -> wire.ChunkSummary:
    """Return a chunk without its text; place: the extent where it lies."""
    state = "open" if chunk.sealed_at_s is None else "waiting" if chunk.reconciled_at_s is None else "reconciled"
    return wire.ChunkSummary(
        id=f"c{chunk.id}",
        namespace=chunk.namespace,
        state=state,
        length_tokens=chunk.length_tokens,
        created_at_s=chunk.created_at_s,
        sealed_at_s=chunk.sealed_at_s,
        reconciled_at_s=chunk.reconciled_at_s,
        estimated_rho=chunk.estimated_rho,
        place=place,
    )


def places(extents: Iterable[answers.ExtentView]) -> dict[int, str]:
    """Return the extent of each chunk that lies in one."""
    return {chunk: f"extent {view.extent}" for view in extents for chunk in view.chunk_ids}


def card(found: answers.ChunkCard) -> wire.ChunkCard:
    """Return all that is known of a chunk."""
    return wire.ChunkCard(
        chunk=chunk_summary(found.chunk, "" if found.place is None else f"extent {found.place.extent}"),
        turns=[turn_view(turn) for turn in found.turns],
        versions=_versions(found.versions),
        records=_records(found.records),
        links=[wire.ChunkLink(chunk=f"c{other}", weight=weight) for other, weight in _by_weight(found.links)],
        neighbours=[] if found.place is None else [f"c{other}" for other in found.place.neighbours],
    )


def history(name: str, found: answers.History) -> wire.History:
    """Return where something comes from."""
    return wire.History(
        id=name,
        turns=[turn_view(turn, found.sources.get(turn.id, ())) for turn in found.turns],
        versions=_versions(found.versions),
        records=_records(found.records),
        relations=[
            wire.RelationView(
                record=f"r{r.record_id}", other=f"r{r.other_id}", relation=r.relation.value, reason=r.reason
            )
            for r in found.relations
        ],
    )


def forgotten(done: answers.Forgetting, sessions: Sequence[str]) -> wire.Forgotten:
    """Return what went, or would, and which stored sessions hold the same text still."""
    return wire.Forgotten(
        dry_run=not done.is_done,
        turns=[turn_view(turn) for turn in done.turns],
        records=[f"r{record}" for record in done.gone.record_ids],
        chunks_changed=[f"c{chunk}" for chunk in done.gone.changed_chunk_ids],
        chunks_removed=[f"c{chunk}" for chunk in done.gone.emptied_chunk_ids],
        sessions=list(sessions),
    )


def stats(found: answers.MemoryStats) -> wire.MemoryStats:
    """Return figures."""
    return wire.MemoryStats(
        namespaces=[
            wire.NamespaceStats(
                namespace=one.namespace,
                turns=one.turns,
                length_tokens=one.length_tokens,
                chunks=one.chunks,
                waiting_chunks=one.waiting_chunks,
                records=one.records,
                estimated_rho=one.estimated_rho,
                actual_rho=one.actual_rho,
            )
            for one in found.namespaces
        ],
        database_bytes=found.database_bytes,
        index_bytes=found.index_bytes,
        compactor=found.compactor,
        model_tokens=found.model_tokens,
        problems=list(found.problems),
        extent_bytes=found.extent_bytes,
        write_amplification=found.write_amplification,
    )


def _versions(versions: Iterable[ChunkVersion]) -> list[wire.Version]:
    return [
        wire.Version(version=v.version, text=v.text, rho=v.rho, made_by=v.made_by, made_at_s=v.made_at_s)
        for v in versions
    ]


def _records(records: Iterable[Record]) -> list[wire.RecordView]:
    return [
        wire.RecordView(
            id=f"r{r.id}",
            text=r.text,
            subject=r.subject,
            slot=r.slot,
            event_at_s=r.event_at_s,
            made_by=r.made_by,
            turns=[f"t{turn}" for turn in r.turn_ids],
            is_current=r.is_current,
        )
        for r in records
    ]


def _by_weight(links: Mapping[int, float]) -> list[tuple[int, float]]:
    return sorted(links.items(), key=lambda link: (-link[1], link[0]))
