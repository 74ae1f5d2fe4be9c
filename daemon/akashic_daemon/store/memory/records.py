"""Statements of reconciliation and how they stand to each other. Works inside the caller's transaction or read."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence

from akashic_daemon.errors import NotFound
from akashic_daemon.store.memory.rows import NewRecord, NewRelation, Record, RecordRelation, Relation, storable

_COLUMNS = (
    "r.id, n.name, r.chunk_id, r.text, r.subject, r.slot, r.event_at_s, r.made_by, r.made_at_s, "
    "r.value, r.is_negated, r.changes, "
    "(SELECT group_concat(turn_id) FROM record_turns WHERE record_id = r.id), "
    "NOT EXISTS (SELECT 1 FROM record_relations WHERE other_id = r.id AND relation = 'supersedes') "
    "FROM records r JOIN namespaces n ON n.id = r.namespace_id"
)


def add(
    c: sqlite3.Connection, space: int, chunk_id: int | None, new: Sequence[NewRecord], made_by: str, at_s: float
) -> list[int]:
    """Store statements with the turns they rest on and return their ids."""
    ids: list[int] = []
    for record in new:
        if not record.turn_ids:
            raise ValueError("a record rests on at least one turn")
        (row_id,) = c.execute(
            "INSERT INTO records (namespace_id, chunk_id, text, subject, slot, event_at_s, made_by, made_at_s, "
            "value, is_negated, changes) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id",
            (
                space,
                chunk_id,
                storable(record.text),
                storable(record.subject),
                storable(record.slot),
                record.event_at_s,
                made_by,
                at_s,
                storable(record.value),
                record.is_negated,
                record.changes,
            ),
        ).fetchone()
        c.executemany(
            "INSERT OR IGNORE INTO record_turns (record_id, turn_id) VALUES (?, ?)",
            [(row_id, turn) for turn in record.turn_ids],
        )
        ids.append(row_id)
    return ids


def relate(c: sqlite3.Connection, relations: Sequence[RecordRelation]) -> None:
    """Keep how records stand to each other; what stands already stays."""
    c.executemany(
        "INSERT OR IGNORE INTO record_relations (record_id, other_id, relation, reason, made_at_s) "
        "VALUES (?, ?, ?, ?, ?)",
        [(r.record_id, r.other_id, r.relation.value, storable(r.reason), r.made_at_s) for r in relations],
    )


def relate_new(c: sqlite3.Connection, ids: Sequence[int], new: Sequence[NewRelation], at_s: float) -> None:
    """Keep how records that were just added, of these ids, stand to others and to each other."""
    for pair in new:
        other = pair.other_id if pair.other_record is None else ids[pair.other_record]
        if other is None:
            raise ValueError("a relation has two ends")
        own = ids[pair.record]
        first, second = (own, other) if pair.is_newer else (other, own)
        relate(c, [RecordRelation(first, second, pair.relation, pair.reason, at_s)])


def unrelate(c: sqlite3.Connection, record_id: int, other_id: int, relation: Relation) -> bool:
    """Take a relation back; False when it didn't stand."""
    done = c.execute(
        "DELETE FROM record_relations WHERE record_id = ? AND other_id = ? AND relation = ?",
        (record_id, other_id, relation.value),
    )
    return done.rowcount > 0


def get(c: sqlite3.Connection, record_id: int) -> Record:
    """Return a statement. Raises NotFound."""
    for record in _read(c, "WHERE r.id = ?", (record_id,)):
        return record
    raise NotFound(f"looking for record r{record_id}: there is none", hint="`akashic mem inspect` lists records")


def of_chunk(c: sqlite3.Connection, chunk_id: int) -> list[Record]:
    """Return the statements made from a chunk."""
    return list(_read(c, "WHERE r.chunk_id = ? ORDER BY r.id", (chunk_id,)))


def of_turns(c: sqlite3.Connection, turn_ids: Sequence[int]) -> list[Record]:
    """Return the statements that rest on any of the turns."""
    marks = ",".join("?" * len(turn_ids))
    where = f"WHERE r.id IN (SELECT record_id FROM record_turns WHERE turn_id IN ({marks})) ORDER BY r.id"
    return list(_read(c, where, tuple(turn_ids)))


def of_slot(c: sqlite3.Connection, space: int, subject: str, slot: str, limit: int = -1) -> list[Record]:
    """Return the statements about a subject's slot, the oldest event first; with a limit the newest ones only."""
    where = "WHERE r.namespace_id = ? AND r.subject = ? AND r.slot = ? ORDER BY r.event_at_s DESC, r.id DESC LIMIT ?"
    return list(_read(c, where, (space, subject, slot, limit)))[::-1]


def texts(c: sqlite3.Connection, space: int, except_by: str) -> list[tuple[int, str]]:
    """Return the texts of a namespace's statements that others than one made, each with its id."""
    return c.execute(
        "SELECT id, text FROM records WHERE namespace_id = ? AND made_by <> ?", (space, except_by)
    ).fetchall()


def relations(c: sqlite3.Connection, record_id: int) -> list[RecordRelation]:
    """Return the relations that a record takes part in, on either side."""
    rows = c.execute(
        "SELECT record_id, other_id, relation, reason, made_at_s FROM record_relations "
        "WHERE record_id = ? OR other_id = ? ORDER BY made_at_s, record_id, other_id",
        (record_id, record_id),
    )
    return [RecordRelation(a, b, Relation(kind), reason, at_s) for a, b, kind, reason, at_s in rows]


def _read(c: sqlite3.Connection, where: str, values: tuple[object, ...]) -> Iterator[Record]:
    for *head, turns, is_current in c.execute(f"SELECT {_COLUMNS} {where}", values):
        row_id, namespace, chunk_id, text, subject, slot, event_at_s, made_by, made_at_s, value, is_negated, changes = (
            head
        )
        yield Record(
            id=row_id,
            namespace=namespace,
            chunk_id=chunk_id,
            text=text,
            subject=subject,
            slot=slot,
            event_at_s=event_at_s,
            made_by=made_by,
            made_at_s=made_at_s,
            turn_ids=tuple(int(turn) for turn in (turns or "").split(",") if turn),
            is_current=bool(is_current),
            value=value,
            is_negated=bool(is_negated),
            changes=bool(changes),
        )
