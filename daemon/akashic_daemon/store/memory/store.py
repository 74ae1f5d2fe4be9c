"""The memory database as an object. Use it on one thread; SQLite's errors come out as ours.

Turns are kept as they were said and never changed; everything else is derived from them, and goes with them.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path

from akashic_daemon.errors import NotFound
from akashic_daemon.store.database import Database, open_database
from akashic_daemon.store.memory import chunks, forgetting, marks, records, turns
from akashic_daemon.store.memory.marks import WatchMark
from akashic_daemon.store.memory.rows import (
    NOWHERE,
    Added,
    Chunk,
    ChunkVersion,
    Cut,
    EmbedderState,
    Forgotten,
    IndexRow,
    NewRecord,
    NewRelation,
    NewTurn,
    Record,
    RecordRelation,
    Relation,
    Retold,
    Source,
    Turn,
)
from akashic_daemon.store.memory.schema import MIGRATIONS, TABLES
from akashic_daemon.types import Clock

MOST_RESULT_SETS = 10_000
"""So many result sets are kept of a namespace; the oldest go first."""


def open_memory_store(path: Path, clock: Clock) -> MemoryStore:
    """Open or make the memory database. Raises what `open_database` raises."""
    return MemoryStore(open_database(path, migrations=MIGRATIONS, tables=TABLES), clock)


class MemoryStore:
    """All of memory that is on disk. A method that names a namespace which has nothing raises NotFound."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def shrink(self) -> None:
        """Give freed pages back to the disk and cut the log. Raises Conflict while another process reads the file."""
        self._database.shrink()

    def namespaces(self) -> dict[str, int]:
        """Return the namespaces and how many turns each has."""
        with self._database.reading() as c:
            return dict(
                c.execute(
                    "SELECT n.name, (SELECT count(*) FROM turns t WHERE t.namespace_id = n.id) FROM namespaces n "
                    "ORDER BY n.name"
                ).fetchall()
            )

    def figures(self, namespace: str) -> tuple[int, int, int, int, int, float | None, float | None]:
        """Return how many turns, tokens, chunks, waiting chunks and records there are, and mean rho: estimated, actual."""
        with self._database.reading() as c:
            return chunks.figures(c, turns.namespace_id(c, namespace))

    def size_bytes(self) -> int:
        """Return what the database's files take."""
        return self._database.size_bytes()

    def add_turns(self, namespace: str, source: str, new: Sequence[NewTurn]) -> Added:
        """Store turns of one source in the order they were said, into the namespace's open chunk.

        Adding them again changes nothing. What the namespace has already, word for word by the same speaker, isn't
        stored twice; it gets another place of origin.
        """
        now_s = self._clock.now_s()
        with self._database.transaction() as c:
            space = turns.namespace_id(c, namespace, made_at_s=now_s)
            added = turns.add(c, space, source, new, now_s, lambda: chunks.opened(c, space, now_s).id)
            if added.new_ids:
                chunks.recount(c, chunks.opened(c, space, now_s).id)
            return added

    def turns(self, ids: Sequence[int]) -> dict[int, Turn]:
        """Return those of the turns that exist."""
        with self._database.reading() as c:
            return turns.by_ids(c, ids)

    def turns_of(self, namespace: str, *, after_id: int = 0, limit: int = 1000) -> list[Turn]:
        """Return a namespace's turns in order, those after one."""
        with self._database.reading() as c:
            return turns.of_namespace(c, turns.namespace_id(c, namespace), after_id, limit)

    def turns_of_source(self, namespace: str, source: str) -> list[Turn]:
        """Return every turn that was said in a source, also those first said elsewhere."""
        with self._database.reading() as c:
            return turns.of_source(c, turns.namespace_id(c, namespace), source)

    def has_said(self, namespace: str, speaker: str, text: str) -> bool:
        """Tell if a namespace has just that of that speaker; False where there is no such namespace."""
        with self._database.reading() as c:
            return turns.is_there(c, namespace, speaker, text)

    def sources_of(self, turn_id: int) -> list[Source]:
        """Return every place where a turn was said."""
        with self._database.reading() as c:
            return turns.sources(c, turn_id)

    def terms(self, namespace: str) -> dict[str, tuple[int, int]]:
        """Return a namespace's terms: the id of each, and how many turns have it."""
        with self._database.reading() as c:
            space = turns.namespace_id(c, namespace)
            rows = c.execute("SELECT term, id, document_count FROM terms WHERE namespace_id = ?", (space,))
            return {term: (row_id, count) for term, row_id, count in rows}

    def term_ids(self, namespace: str, terms: Sequence[str]) -> dict[str, int]:
        """Return the ids of those terms that the namespace has."""
        with self._database.reading() as c:
            return turns.lookup_terms(c, turns.namespace_id(c, namespace), terms)

    def index_rows(self, namespace: str, embedder: str, *, after_id: int = 0) -> list[IndexRow]:
        """Return what an index needs of the turns after one, in the order of their ids."""
        with self._database.reading() as c:
            return list(turns.index_rows(c, turns.namespace_id(c, namespace), embedder, after_id))

    def put_vectors(
        self, embedder: str, vectors: Iterable[tuple[int, bytes]], state: EmbedderState | None = None
    ) -> None:
        """Keep turns' vectors, in the embedder's own form, and with them what it knows of the namespace.

        What was kept before is replaced, also another embedder's. Unknown turns don't count.
        """
        with self._database.transaction() as c:
            c.executemany(
                "INSERT INTO turn_vectors (turn_id, embedder, body) SELECT id, ?, ? FROM turns WHERE id = ? "
                "ON CONFLICT (turn_id) DO UPDATE SET embedder = excluded.embedder, body = excluded.body",
                [(embedder, body, turn_id) for turn_id, body in vectors],
            )
            if state is not None:
                space = turns.namespace_id(c, state.namespace)
                c.execute("DELETE FROM embedder_states WHERE namespace_id = ?", (space,))
                c.execute(
                    "INSERT INTO embedder_states (namespace_id, embedder, turn_count, body) VALUES (?, ?, ?, ?)",
                    (space, embedder, state.turn_count, state.body),
                )

    def embedder_state(self, namespace: str, embedder: str) -> EmbedderState | None:
        """Return what was kept for an embedder; None when nothing was."""
        with self._database.reading() as c:
            row = c.execute(
                "SELECT turn_count, body FROM embedder_states WHERE namespace_id = ? AND embedder = ?",
                (turns.namespace_id(c, namespace), embedder),
            ).fetchone()
            return None if row is None else EmbedderState(namespace, int(row[0]), bytes(row[1]))

    def filled_chunk(self, namespace: str) -> Chunk | None:
        """Return the chunk that takes a namespace's turns now, if there is one. Raises NotFound."""
        with self._database.reading() as c:
            return chunks.open_one(c, turns.namespace_id(c, namespace))

    def cut_chunk(self, chunk: Chunk, cuts: Sequence[Cut]) -> list[int]:
        """Seal beginnings of an open chunk, each as one of its own, and return their ids; what is left stays open."""
        with self._database.transaction() as c:
            space = turns.namespace_id(c, chunk.namespace)
            return chunks.cut(c, chunk.id, space, cuts, self._clock.now_s())

    def document_counts(self, namespace: str, terms: Sequence[str]) -> dict[str, int]:
        """Return how many of a namespace's turns have each of those terms that it has."""
        with self._database.reading() as c:
            return turns.document_counts(c, turns.namespace_id(c, namespace), terms)

    def compaction_state(self, namespace: str) -> str | None:
        """Return what compaction keeps of a namespace, as it wrote it."""
        with self._database.reading() as c:
            row = c.execute(
                "SELECT body FROM compaction_states WHERE namespace_id = ?", (turns.namespace_id(c, namespace),)
            ).fetchone()
            return None if row is None else str(row[0])

    def waiting_chunks(self, limit: int = 100) -> list[Chunk]:
        """Return the oldest sealed chunks that weren't reconciled yet."""
        with self._database.reading() as c:
            return chunks.waiting(c, limit)

    def chunk(self, chunk_id: int) -> Chunk:
        """Return a chunk. Raises NotFound."""
        with self._database.reading() as c:
            return chunks.get(c, chunk_id)

    def chunks_of(self, namespace: str) -> list[Chunk]:
        """Return a namespace's chunks in order, the open one last."""
        with self._database.reading() as c:
            return chunks.of_namespace(c, turns.namespace_id(c, namespace))

    def turns_of_chunk(self, chunk_id: int) -> list[Turn]:
        """Return a chunk's turns in order."""
        with self._database.reading() as c:
            return turns.of_chunk(c, chunk_id)

    def chunk_versions(self, chunk_id: int) -> list[ChunkVersion]:
        """Return a chunk's compacted texts, the newest last."""
        with self._database.reading() as c:
            return chunks.versions(c, chunk_id)

    def links_of(self, namespace: str) -> dict[int, list[int]]:
        """Return for each of a namespace's chunks those that a link joins to it, the strongest first."""
        with self._database.reading() as c:
            return chunks.links(c, turns.namespace_id(c, namespace))

    def linked_chunks(self, chunk_id: int) -> dict[int, float]:
        """Return the chunks that a link joins to this one, from either side, with their weights."""
        with self._database.reading() as c:
            return chunks.linked(c, chunk_id)

    def reconciled(
        self,
        chunk_id: int,
        *,
        made_by: str,
        version: tuple[str, float] | None = None,
        new_records: Sequence[NewRecord] = (),
        relations: Sequence[NewRelation] = (),
        links: Sequence[tuple[int, float]] = (),
        state: str | None = None,
    ) -> list[int]:
        """Keep what reconciling a chunk gave, all of it or nothing, and return the new records' ids.

        version: the compacted text and its actual rho. links: other chunks with weights. state: what compaction keeps of
        the namespace. The chunk waits no more.
        """
        now_s = self._clock.now_s()
        with self._database.transaction() as c:
            chunk = chunks.get(c, chunk_id)
            if version is not None:
                chunks.add_version(c, chunk_id, *version, made_by, now_s)
            space = turns.namespace_id(c, chunk.namespace)
            ids = records.add(c, space, chunk_id, new_records, made_by, now_s)
            records.relate_new(c, ids, relations, now_s)
            chunks.link(c, chunk_id, links)
            if state is not None:
                c.execute(
                    "INSERT INTO compaction_states (namespace_id, body) VALUES (?, ?) "
                    "ON CONFLICT (namespace_id) DO UPDATE SET body = excluded.body",
                    (space, state),
                )
            c.execute("UPDATE chunks SET reconciled_at_s = ? WHERE id = ?", (now_s, chunk_id))
            return ids

    def relate(self, relations: Sequence[RecordRelation]) -> None:
        """Keep how records stand to each other; what stands already stays."""
        with self._database.transaction() as c:
            records.relate(c, relations)

    def unrelate(self, record_id: int, other_id: int, relation: Relation) -> None:
        """Take a relation back, so that a wrong supersession is undone. Raises NotFound."""
        with self._database.transaction() as c:
            if not records.unrelate(c, record_id, other_id, relation):
                raise NotFound(
                    f"taking back that record r{record_id} {relation.value} r{other_id}: it doesn't",
                    hint="`akashic mem history` shows what stands",
                )

    def records_of_slot(self, namespace: str, subject: str, slot: str, limit: int = -1) -> list[Record]:
        """Return the statements about a subject's slot, the oldest event first; with a limit the newest ones only."""
        with self._database.reading() as c:
            return records.of_slot(c, turns.namespace_id(c, namespace), subject, slot, limit)

    def records_of_chunk(self, chunk_id: int) -> list[Record]:
        """Return the statements made from a chunk."""
        with self._database.reading() as c:
            return records.of_chunk(c, chunk_id)

    def records_of_turns(self, turn_ids: Sequence[int]) -> list[Record]:
        """Return the statements that rest on any of some hundred turns."""
        with self._database.reading() as c:
            return records.of_turns(c, turn_ids)

    def record(self, record_id: int) -> Record:
        """Return a statement. Raises NotFound."""
        with self._database.reading() as c:
            return records.get(c, record_id)

    def relations_of(self, record_id: int) -> list[RecordRelation]:
        """Return the relations that a record takes part in."""
        with self._database.reading() as c:
            return records.relations(c, record_id)

    def log_all(self, results: Sequence[tuple[str, Sequence[int]]]) -> None:
        """Note what several searches returned, of a namespace each; turns that are gone are left out."""
        with self._database.transaction() as c:
            for namespace, found in results:
                there = turns.by_ids(c, found)
                self._log(c, turns.namespace_id(c, namespace), [turn for turn in found if turn in there])

    def _log(self, c: sqlite3.Connection, space: int, turn_ids: Sequence[int]) -> None:
        if turn_ids:
            c.execute(
                "INSERT INTO result_sets (namespace_id, at_s, turn_ids) VALUES (?, ?, ?)",
                (space, self._clock.now_s(), array("q", turn_ids).tobytes()),
            )
            c.execute(
                "DELETE FROM result_sets WHERE namespace_id = ? AND id <= (SELECT id FROM result_sets "
                "WHERE namespace_id = ? ORDER BY id DESC LIMIT 1 OFFSET ?)",
                (space, space, MOST_RESULT_SETS),
            )

    def result_chunks(self, namespace: str) -> list[list[int]]:
        """Return the chunks of what searches of a namespace returned, each once, the best first."""
        found = self.result_sets(namespace)
        with self._database.reading() as c:
            chunk_of = turns.chunks_of(c, turns.namespace_id(c, namespace))
        return [list(dict.fromkeys(chunk_of[turn] for turn in ids if turn in chunk_of)) for ids in found]

    def result_sets(self, namespace: str) -> list[tuple[int, ...]]:
        """Return what searches of a namespace returned, the oldest first."""
        with self._database.reading() as c:
            space = turns.namespace_id(c, namespace)
            rows = c.execute("SELECT turn_ids FROM result_sets WHERE namespace_id = ? ORDER BY id", (space,)).fetchall()
        found = []
        for (blob,) in rows:
            ids = array("q")
            ids.frombytes(blob)
            found.append(tuple(ids))
        return found

    def watch_marks(self, namespace: str) -> list[WatchMark]:
        """Return how far the logs were read that are followed into a namespace; none for one that has nothing."""
        with self._database.reading() as c:
            try:
                return marks.of_namespace(c, turns.namespace_id(c, namespace))
            except NotFound:
                return []

    def put_watch_mark(self, namespace: str, mark: WatchMark) -> None:
        """Keep how far a log was read."""
        with self._database.transaction() as c:
            marks.put(c, turns.namespace_id(c, namespace, made_at_s=self._clock.now_s()), mark)

    def drop_watch_mark(self, namespace: str, mark: WatchMark) -> None:
        """Forget a log that is gone. Raises NotFound for a namespace that has nothing."""
        with self._database.transaction() as c:
            marks.drop(c, turns.namespace_id(c, namespace), mark)

    def written(self, namespace: str, *, except_by: str) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
        """Return the compacted texts, by chunk, and the statements, by record, that others than one wrote."""
        with self._database.reading() as c:
            space = turns.namespace_id(c, namespace)
            return chunks.texts(c, space, except_by), records.texts(c, space, except_by)

    def plan_forgetting(self, turn_ids: Iterable[int], retold: Retold = NOWHERE) -> Forgotten:
        """Return what `forget` would remove, and remove nothing."""
        with self._database.transaction() as c:
            return forgetting.plan(c, turn_ids, retold)

    def forget(self, turn_ids: Iterable[int], retold: Retold = NOWHERE) -> Forgotten:
        """Remove turns with all that was derived from them; when it returns, no file of the database has their text.

        retold: what goes with them although it rests on other turns. Raises Conflict when another process holds the log: then the turns are gone from every answer, not yet from it.
        """
        with self._database.transaction() as c:
            gone = forgetting.carry_out(c, turn_ids, retold)
        self._database.shrink()
        return gone
