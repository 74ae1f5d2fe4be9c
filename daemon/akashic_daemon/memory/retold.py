"""Where words stand that only certain turns said, though it rests on others: a model that compacts one chunk is shown more.

It reads related chunks and all turns of its own, and may use a word of one in a fact that names another as its source.
Texts that were made without a model hold only words of the turns that they rest on, but name turns of related chunks for lines
that stand there too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from akashic_daemon.memory.repeats import referred
from akashic_daemon.memory.words import terms
from akashic_daemon.store.memory.rows import Retold, Turn
from akashic_daemon.store.memory.store import MemoryStore

EXTRACTIVE = "extractive"
"""What texts are marked with that were made without a model."""


def retold(store: MemoryStore, turns: Iterable[Turn]) -> Retold:
    """Return what models wrote with words that no other turn of the namespace has, and texts that name one of the turns."""
    counts: dict[str, Counter[str]] = {}
    turns = list(turns)
    for turn in turns:
        counts.setdefault(turn.namespace, Counter()).update(set(terms(turn.text)))
    chunk_ids = _naming(store, turns)
    record_ids: set[int] = set()
    for namespace, having in counts.items():
        all_having = store.document_counts(namespace, list(having))
        only_here = {term for term, count in having.items() if all_having.get(term, 0) <= count}
        if only_here:
            versions, records = store.written(namespace, except_by=EXTRACTIVE)
            chunk_ids |= {chunk_id for chunk_id, text in versions if not only_here.isdisjoint(terms(text))}
            record_ids |= {record_id for record_id, text in records if not only_here.isdisjoint(terms(text))}
    return Retold(frozenset(chunk_ids), frozenset(record_ids))


def _naming(store: MemoryStore, turns: Sequence[Turn]) -> set[int]:
    """Return the linked chunks that left lines out because one of the turns has them."""
    ids = {turn.id for turn in turns}
    touched = {turn.chunk_id for turn in turns if turn.chunk_id is not None}
    beside = {other for chunk_id in touched for other in store.linked_chunks(chunk_id)}
    return {
        chunk_id
        for chunk_id in beside
        if any(not ids.isdisjoint(referred(version.text)) for version in store.chunk_versions(chunk_id))
    }
