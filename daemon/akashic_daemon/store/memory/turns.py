"""Turns, their places of origin and their terms. Every function works inside the caller's transaction or read."""

from __future__ import annotations

import sqlite3
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from akashic_daemon.errors import NotFound, StoreError
from akashic_daemon.store.memory.rows import Added, IndexRow, NewTurn, Source, Turn, likeness, storable, turn_digest

_BATCH = 500
_NAMED = 8
_COLUMNS = (
    "t.id, n.name, s.name, t.previous_id, t.chunk_id, t.speaker, t.text, t.event_at_s, t.length_tokens, t.digest "
    "FROM turns t JOIN namespaces n ON n.id = t.namespace_id JOIN sources s ON s.id = t.source_id"
)


def namespace_id(c: sqlite3.Connection, name: str, *, made_at_s: float | None = None) -> int:
    """Return a namespace's id; made_at_s: make it when there is none. Raises NotFound."""
    row = c.execute("SELECT id FROM namespaces WHERE name = ?", (name,)).fetchone()
    if row is None and made_at_s is not None:
        row = c.execute(
            "INSERT INTO namespaces (name, created_at_s) VALUES (?, ?) RETURNING id", (name, made_at_s)
        ).fetchone()
    if row is None:
        known = [str(name) for (name,) in c.execute("SELECT name FROM namespaces ORDER BY name LIMIT ?", (_NAMED + 1,))]
        told = ", ".join(known[:_NAMED]) + (", …" if len(known) > _NAMED else "")
        raise NotFound(
            f"looking for memory {name!r}: nothing was ever kept there; there is {told or 'nothing at all'}",
            hint="`akashic mem stats` lists all",
        )
    return int(row[0])


def add(
    c: sqlite3.Connection, space: int, source: str, turns: Sequence[NewTurn], at_s: float, chunk_id: Callable[[], int]
) -> Added:
    """Store turns of one source in order. One that is there already gets another place of origin.

    chunk_id: returns the chunk that takes new ones; asked once, and only when there are any.
    """
    c.execute("INSERT OR IGNORE INTO sources (namespace_id, name) VALUES (?, ?)", (space, storable(source)))
    (source_id,) = c.execute(
        "SELECT id FROM sources WHERE namespace_id = ? AND name = ?", (space, storable(source))
    ).fetchone()
    (previous,) = c.execute("SELECT max(id) FROM turns WHERE source_id = ?", (source_id,)).fetchone()
    said = [(storable(turn.speaker), storable(turn.text)) for turn in turns]
    digests = [turn_digest(*one) for one in said]
    there = _lookup(c, space, "digest", digests)
    likes = ["" if digest in there else likeness(*one) for one, digest in zip(said, digests, strict=True)]
    alike = _lookup(c, space, "likeness", [like for like in likes if like])
    # Numbers are never used twice, so they are what the table would have given.
    (newest,) = c.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'turns'").fetchone()
    ids: list[int] = []
    new: dict[int, NewTurn] = {}
    rows: list[tuple[object, ...]] = []
    for turn, (speaker, text), digest, like in zip(turns, said, digests, likes, strict=True):
        turn_id = there.get(digest) or (alike.get(like) if like else None)
        if turn_id is None:
            turn_id = newest = newest + 1
            there[digest] = turn_id
            if like:
                alike[like] = turn_id
            rows.append(
                (turn_id, space, digest, source_id, previous, speaker, text, turn.event_at_s, turn.length_tokens,
                 turn.traits, at_s, like)
            )  # fmt: skip
            new[turn_id] = turn
        ids.append(turn_id)
        previous = turn_id
    if new:
        _insert(c, rows, chunk_id())
        _index(c, space, new)
    c.executemany(
        "INSERT OR IGNORE INTO provenance (turn_id, source_id, reference, event_at_s) VALUES (?, ?, ?, ?)",
        [(i, source_id, storable(turn.reference), turn.event_at_s) for i, turn in zip(ids, turns, strict=True)],
    )
    return Added(tuple(ids), tuple(new))


def _lookup(c: sqlite3.Connection, space: int, column: str, values: Sequence[str]) -> dict[str, int]:
    """Return the turns of a namespace that have one of the values; column: digest, or likeness other than ''."""
    found: dict[str, int] = {}
    # The second condition lets SQLite use the index of likenesses, which has no others.
    for start in range(0, len(values), _BATCH):
        part = values[start : start + _BATCH]
        marks = ",".join("?" * len(part))
        where = f"namespace_id = ? AND {column} IN ({marks}) AND {column} <> ''"
        found.update(c.execute(f"SELECT {column}, id FROM turns WHERE {where} ORDER BY id DESC", (space, *part)))
    return found


def _insert(c: sqlite3.Connection, rows: Sequence[tuple[object, ...]], chunk_id: int) -> None:
    c.executemany(
        "INSERT INTO turns (id, namespace_id, digest, source_id, previous_id, speaker, text, event_at_s, length_tokens, "
        "traits, added_at_s, likeness, chunk_id) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [(*row, chunk_id) for row in rows],
    )


def _index(c: sqlite3.Connection, space: int, new: Mapping[int, NewTurn]) -> None:
    """Keep the terms of new turns, and count in how many turns each is."""
    term_ids = _term_ids(c, space, list(new.values()))
    own = {turn_id: array("I", [term_ids[term] for term in turn.terms]) for turn_id, turn in new.items()}
    c.executemany(
        "INSERT INTO turn_terms (turn_id, term_ids) VALUES (?, ?)", [(i, ids.tobytes()) for i, ids in own.items()]
    )
    counts = Counter(term for ids in own.values() for term in set(ids))
    c.executemany(
        "UPDATE terms SET document_count = document_count + ? WHERE id = ?", [(n, term) for term, n in counts.items()]
    )


def _term_ids(c: sqlite3.Connection, space: int, turns: Sequence[NewTurn]) -> dict[str, int]:
    """Return the id of each term of the turns, new ones with a count of 0."""
    wanted = dict.fromkeys(term for turn in turns for term in turn.terms)
    found = lookup_terms(c, space, list(wanted))
    missing = [term for term in wanted if term not in found]
    if missing:
        c.executemany(
            "INSERT INTO terms (namespace_id, term, document_count) VALUES (?, ?, 0)",
            [(space, storable(term)) for term in missing],
        )
        stored = lookup_terms(c, space, [storable(term) for term in missing])
        found.update((term, stored[storable(term)]) for term in missing)
    return found


def lookup_terms(c: sqlite3.Connection, space: int, terms: Sequence[str]) -> dict[str, int]:
    """Return the ids of those terms that the namespace has."""
    found: dict[str, int] = {}
    for start in range(0, len(terms), _BATCH):
        part = terms[start : start + _BATCH]
        marks = ",".join("?" * len(part))
        found.update(
            c.execute(f"SELECT term, id FROM terms WHERE namespace_id = ? AND term IN ({marks})", (space, *part))
        )
    return found


def is_there(c: sqlite3.Connection, namespace: str, speaker: str, text: str) -> bool:
    """Tell if a namespace has a turn, word for word."""
    digest = turn_digest(storable(speaker), storable(text))
    row = c.execute(
        "SELECT 1 FROM turns WHERE namespace_id = (SELECT id FROM namespaces WHERE name = ?) AND digest = ?",
        (namespace, digest),
    ).fetchone()
    return row is not None


def document_counts(c: sqlite3.Connection, space: int, terms: Sequence[str]) -> dict[str, int]:
    """Return how many turns have each of those terms that the namespace has."""
    found: dict[str, int] = {}
    for start in range(0, len(terms), _BATCH):
        part = terms[start : start + _BATCH]
        marks = ",".join("?" * len(part))
        found.update(
            c.execute(
                f"SELECT term, document_count FROM terms WHERE namespace_id = ? AND term IN ({marks})", (space, *part)
            )
        )
    return found


def by_ids(c: sqlite3.Connection, ids: Sequence[int]) -> dict[int, Turn]:
    """Return those of the turns that exist. Raises StoreError for one that was changed on disk."""
    found: dict[int, Turn] = {}
    for start in range(0, len(ids), _BATCH):
        part = ids[start : start + _BATCH]
        marks = ",".join("?" * len(part))
        found.update((t.id, t) for t in _read(c, f"WHERE t.id IN ({marks})", tuple(part)))
    return found


def chunks_of(c: sqlite3.Connection, space: int) -> dict[int, int]:
    """Return the chunk of each turn of a namespace."""
    return dict(c.execute("SELECT id, chunk_id FROM turns WHERE namespace_id = ? AND chunk_id IS NOT NULL", (space,)))


def of_chunk(c: sqlite3.Connection, chunk_id: int) -> list[Turn]:
    """Return a chunk's turns in order."""
    return list(_read(c, "WHERE t.chunk_id = ? ORDER BY t.id", (chunk_id,)))


def of_namespace(c: sqlite3.Connection, space: int, after_id: int, limit: int) -> list[Turn]:
    """Return turns in the order of their ids, those after one."""
    return list(_read(c, "WHERE t.namespace_id = ? AND t.id > ? ORDER BY t.id LIMIT ?", (space, after_id, limit)))


def of_source(c: sqlite3.Connection, space: int, source: str) -> list[Turn]:
    """Return every turn that was said in a source, also those first said elsewhere."""
    where = (
        "WHERE t.namespace_id = ? AND t.id IN (SELECT p.turn_id FROM provenance p JOIN sources o ON o.id = p.source_id "
        "WHERE o.namespace_id = t.namespace_id AND o.name = ?) ORDER BY t.id"
    )
    return list(_read(c, where, (space, source)))


def _read(c: sqlite3.Connection, where: str, values: tuple[object, ...]) -> Iterator[Turn]:
    for *columns, digest in c.execute(f"SELECT {_COLUMNS} {where}", values):
        turn = Turn(*columns)
        if turn_digest(turn.speaker, turn.text) != digest:
            raise StoreError(
                f"reading turn {turn.id} of memory {turn.namespace}: its text was changed on disk",
                hint="forget it, and import its source again",
            )
        yield turn


def sources(c: sqlite3.Connection, turn_id: int) -> list[Source]:
    """Return every place where a turn was said."""
    rows = c.execute(
        "SELECT s.name, p.reference, p.event_at_s FROM provenance p JOIN sources s ON s.id = p.source_id "
        "WHERE p.turn_id = ? ORDER BY p.event_at_s, s.name, p.reference",
        (turn_id,),
    )
    return [Source(*row) for row in rows]


def index_rows(c: sqlite3.Connection, space: int, embedder: str, after_id: int) -> Iterator[IndexRow]:
    """Yield what an index needs of the turns after one, in the order of their ids."""
    rows = c.execute(
        "SELECT t.id, t.previous_id, t.chunk_id, t.source_id, t.speaker, t.event_at_s, t.length_tokens, t.traits, w.term_ids, v.body "
        "FROM turns t JOIN turn_terms w ON w.turn_id = t.id "
        "LEFT JOIN turn_vectors v ON v.turn_id = t.id AND v.embedder = ? "
        "WHERE t.namespace_id = ? AND t.id > ? ORDER BY t.id",
        (embedder, space, after_id),
    )
    return (IndexRow(*row) for row in rows)
