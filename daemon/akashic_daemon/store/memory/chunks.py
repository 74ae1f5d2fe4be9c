"""Chunks, their versions and links. Every function works inside the caller's transaction or read."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence

from akashic_daemon.errors import NotFound
from akashic_daemon.store.memory.rows import Chunk, ChunkVersion, Cut, storable

_COLUMNS = (
    "k.id, n.name, k.length_tokens, k.created_at_s, k.sealed_at_s, k.reconciled_at_s, k.estimated_rho "
    "FROM chunks k JOIN namespaces n ON n.id = k.namespace_id"
)


def opened(c: sqlite3.Connection, space: int, at_s: float) -> Chunk:
    """Return the namespace's open chunk; one is made when there is none."""
    if (there := open_one(c, space)) is not None:
        return there
    c.execute("INSERT INTO chunks (namespace_id, created_at_s) VALUES (?, ?)", (space, at_s))
    return next(_read(c, "WHERE k.namespace_id = ? AND k.sealed_at_s IS NULL", (space,)))


def append(c: sqlite3.Connection, chunk_id: int, turn_ids: Iterable[int]) -> None:
    """Put turns into a chunk; its length follows."""
    c.executemany("UPDATE turns SET chunk_id = ? WHERE id = ?", [(chunk_id, turn) for turn in turn_ids])
    recount(c, chunk_id)


def recount(c: sqlite3.Connection, chunk_id: int) -> None:
    """Set a chunk's length to that of its turns."""
    c.execute(
        "UPDATE chunks SET length_tokens = (SELECT coalesce(sum(length_tokens), 0) FROM turns WHERE chunk_id = ?) "
        "WHERE id = ?",
        (chunk_id, chunk_id),
    )


def seal(c: sqlite3.Connection, chunk_id: int, estimated_rho: float | None, at_s: float) -> None:
    """End a chunk; it waits for reconciliation from now on."""
    c.execute(
        "UPDATE chunks SET sealed_at_s = ?, estimated_rho = ? WHERE id = ? AND sealed_at_s IS NULL",
        (at_s, estimated_rho, chunk_id),
    )


def open_one(c: sqlite3.Connection, space: int) -> Chunk | None:
    """Return the namespace's open chunk, if there is one."""
    return next(_read(c, "WHERE k.namespace_id = ? AND k.sealed_at_s IS NULL", (space,)), None)


def cut(c: sqlite3.Connection, chunk_id: int, space: int, cuts: Sequence[Cut], at_s: float) -> list[int]:
    """Seal the beginnings of an open chunk, each as one of its own, and return their ids; the rest stays open.

    The first keeps the chunk's id, so that ids stand in the order of the turns.
    """
    sealed: list[int] = []
    own = {turn for (turn,) in c.execute("SELECT id FROM turns WHERE chunk_id = ?", (chunk_id,))}
    left = sorted(own.difference(*(part.turn_ids for part in cuts)))
    for part in cuts:
        at = chunk_id
        if sealed:  # those of the first are in it already
            at = opened(c, space, at_s).id
            append(c, at, part.turn_ids)
        seal(c, at, part.estimated_rho, at_s)
        sealed.append(at)
    if left and sealed:
        append(c, opened(c, space, at_s).id, left)
    for at in sealed:
        recount(c, at)
    return sealed


def get(c: sqlite3.Connection, chunk_id: int) -> Chunk:
    """Return a chunk. Raises NotFound."""
    for chunk in _read(c, "WHERE k.id = ?", (chunk_id,)):
        return chunk
    raise NotFound(f"looking for chunk {chunk_id}: there is none", hint="`akashic mem inspect` lists chunks")


def of_namespace(c: sqlite3.Connection, space: int) -> list[Chunk]:
    """Return a namespace's chunks in order, the open one last."""
    return list(_read(c, "WHERE k.namespace_id = ? ORDER BY k.id", (space,)))


def waiting(c: sqlite3.Connection, limit: int) -> list[Chunk]:
    """Return the oldest sealed chunks that weren't reconciled yet, of all namespaces."""
    return list(
        _read(c, "WHERE k.sealed_at_s IS NOT NULL AND k.reconciled_at_s IS NULL ORDER BY k.id LIMIT ?", (limit,))
    )


def add_version(c: sqlite3.Connection, chunk_id: int, text: str, rho: float, made_by: str, at_s: float) -> int:
    """Keep another version of a chunk's text and return its number; older ones stay."""
    get(c, chunk_id)
    (newest,) = c.execute("SELECT max(version) FROM chunk_versions WHERE chunk_id = ?", (chunk_id,)).fetchone()
    number = 1 + (newest or 0)
    c.execute(
        "INSERT INTO chunk_versions (chunk_id, version, text, rho, made_by, made_at_s) VALUES (?, ?, ?, ?, ?, ?)",
        (chunk_id, number, storable(text), rho, made_by, at_s),
    )
    return number


def versions(c: sqlite3.Connection, chunk_id: int) -> list[ChunkVersion]:
    """Return a chunk's versions, the newest last."""
    rows = c.execute(
        "SELECT chunk_id, version, text, rho, made_by, made_at_s FROM chunk_versions WHERE chunk_id = ? "
        "ORDER BY version",
        (chunk_id,),
    )
    return [ChunkVersion(*row) for row in rows]


def texts(c: sqlite3.Connection, space: int, except_by: str) -> list[tuple[int, str]]:
    """Return the texts of a namespace's versions that others than one made, each with its chunk."""
    return c.execute(
        "SELECT v.chunk_id, v.text FROM chunk_versions v JOIN chunks k ON k.id = v.chunk_id "
        "WHERE k.namespace_id = ? AND v.made_by <> ?",
        (space, except_by),
    ).fetchall()


def link(c: sqlite3.Connection, chunk_id: int, others: Sequence[tuple[int, float]]) -> None:
    """Link a chunk to others, each with a weight; a link that is there gets the new weight."""
    c.executemany(
        "INSERT INTO chunk_links (chunk_id, other_id, weight) VALUES (?, ?, ?) "
        "ON CONFLICT (chunk_id, other_id) DO UPDATE SET weight = excluded.weight",
        [(chunk_id, other, weight) for other, weight in others],
    )


def linked(c: sqlite3.Connection, chunk_id: int) -> dict[int, float]:
    """Return the chunks that a link joins to this one, from either side, with the greater weight."""
    rows = c.execute(
        "SELECT other, max(weight) FROM (SELECT other_id AS other, weight FROM chunk_links WHERE chunk_id = ? "
        "UNION ALL SELECT chunk_id, weight FROM chunk_links WHERE other_id = ?) GROUP BY other",
        (chunk_id, chunk_id),
    )
    return dict(rows.fetchall())


def links(c: sqlite3.Connection, space: int) -> dict[int, list[int]]:
    """Return for each of a namespace's chunks those that a link joins to it, from either side, the strongest first."""
    rows = c.execute(
        "SELECT l.chunk_id, l.other_id, l.weight FROM chunk_links l JOIN chunks k ON k.id = l.chunk_id "
        "WHERE k.namespace_id = ? ORDER BY l.weight DESC, l.chunk_id, l.other_id",
        (space,),
    )
    found: dict[int, list[int]] = {}
    for one, other, _ in rows:
        found.setdefault(one, []).append(other)
        found.setdefault(other, []).append(one)
    return found


def figures(c: sqlite3.Connection, space: int) -> tuple[int, int, int, int, int, float | None, float | None]:
    """Return how many turns, tokens, chunks, waiting chunks and records there are, and mean rho: estimated, actual."""
    turns, tokens = c.execute(
        "SELECT count(*), coalesce(sum(length_tokens), 0) FROM turns WHERE namespace_id = ?", (space,)
    ).fetchone()
    count, waiting, estimated = c.execute(
        "SELECT count(*), count(*) FILTER (WHERE sealed_at_s IS NOT NULL AND reconciled_at_s IS NULL), "
        "avg(estimated_rho) FROM chunks WHERE namespace_id = ?",
        (space,),
    ).fetchone()
    (actual,) = c.execute(
        "SELECT avg(v.rho) FROM chunk_versions v JOIN chunks k ON k.id = v.chunk_id WHERE k.namespace_id = ? "
        "AND v.version = (SELECT max(version) FROM chunk_versions WHERE chunk_id = k.id)",
        (space,),
    ).fetchone()
    (stated,) = c.execute("SELECT count(*) FROM records WHERE namespace_id = ?", (space,)).fetchone()
    return turns, tokens, count, waiting, stated, estimated, actual


def _read(c: sqlite3.Connection, where: str, values: tuple[object, ...]) -> Iterator[Chunk]:
    return (Chunk(*row) for row in c.execute(f"SELECT {_COLUMNS} {where}", values))
