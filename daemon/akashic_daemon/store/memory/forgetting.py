"""Removing turns with all that was derived from them. Works inside the caller's transaction or read.

A statement or a compacted text that rests on a forgotten turn may hold its words, so it goes as well, whatever else it
rests on; its chunk then waits for reconciliation again. What models wrote elsewhere with its words, the caller names.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections import Counter
from collections.abc import Iterable

from akashic_daemon.store.memory import chunks
from akashic_daemon.store.memory.rows import Forgotten, Retold

_DOOMED = "(SELECT id FROM doomed)"


def plan(c: sqlite3.Connection, turn_ids: Iterable[int], retold: Retold) -> Forgotten:
    """Return what forgetting the turns removes; unknown ids don't count. Keeps the ids in a temporary table.

    retold: texts that go too.
    """
    c.execute("CREATE TEMP TABLE IF NOT EXISTS doomed (id INTEGER PRIMARY KEY)")
    c.execute("DELETE FROM doomed")
    c.executemany("INSERT OR IGNORE INTO doomed (id) VALUES (?)", [(int(turn),) for turn in turn_ids])
    c.execute("DELETE FROM doomed WHERE id NOT IN (SELECT id FROM turns)")
    touched = f"SELECT DISTINCT chunk_id FROM turns WHERE chunk_id IS NOT NULL AND id IN {_DOOMED}"
    left = f"SELECT chunk_id FROM turns WHERE chunk_id IS NOT NULL AND id NOT IN {_DOOMED}"
    resting = _column(c, f"SELECT DISTINCT record_id FROM record_turns WHERE turn_id IN {_DOOMED}")
    changed = _column(c, f"SELECT * FROM ({touched}) WHERE chunk_id IN ({left})")
    emptied = _column(c, f"SELECT * FROM ({touched}) WHERE chunk_id NOT IN ({left}) ORDER BY chunk_id")
    return Forgotten(
        _column(c, "SELECT id FROM doomed ORDER BY id"),
        tuple(sorted(retold.record_ids.union(resting))),
        tuple(sorted(retold.chunk_ids.union(changed).difference(emptied))),
        emptied,
    )


def carry_out(c: sqlite3.Connection, turn_ids: Iterable[int], retold: Retold) -> Forgotten:
    """Remove the turns and what was derived from them; document counts follow."""
    gone = plan(c, turn_ids, retold)
    _uncount_terms(c)
    _bridge(c)
    for name, ids in (("records", gone.record_ids), ("chunks", gone.emptied_chunk_ids)):
        c.executemany(f"DELETE FROM {name} WHERE id = ?", [(row,) for row in ids])
    _forget_results(c)
    c.execute(f"DELETE FROM turns WHERE id IN {_DOOMED}")
    for chunk_id in gone.changed_chunk_ids:
        c.execute("DELETE FROM chunk_versions WHERE chunk_id = ?", (chunk_id,))
        c.execute("UPDATE chunks SET reconciled_at_s = NULL WHERE id = ?", (chunk_id,))
        chunks.recount(c, chunk_id)
    c.execute(
        "DELETE FROM sources WHERE id NOT IN (SELECT source_id FROM turns) "
        "AND id NOT IN (SELECT source_id FROM provenance)"
    )
    c.execute("DELETE FROM doomed")
    return gone


def _uncount_terms(c: sqlite3.Connection) -> None:
    counts: Counter[int] = Counter()
    for (blob,) in c.execute(f"SELECT term_ids FROM turn_terms WHERE turn_id IN {_DOOMED}"):
        own = array("I")
        own.frombytes(blob)
        counts.update(set(own))
    c.executemany(
        "UPDATE terms SET document_count = document_count - ? WHERE id = ?", [(n, term) for term, n in counts.items()]
    )
    # A word that only they had is their text too.
    c.executemany("DELETE FROM terms WHERE id = ? AND document_count <= 0", [(term,) for term in counts])


def _bridge(c: sqlite3.Connection) -> None:
    """Let what followed a forgotten turn follow the one before it; runs of forgotten ones are passed over."""
    before = dict(c.execute(f"SELECT id, previous_id FROM turns WHERE id IN {_DOOMED}"))
    follow = f"SELECT id, previous_id FROM turns WHERE previous_id IN {_DOOMED} AND id NOT IN {_DOOMED}"
    for turn_id, gone_id in c.execute(follow).fetchall():
        previous = gone_id
        while previous in before:
            previous = before[previous]
        c.execute("UPDATE turns SET previous_id = ? WHERE id = ?", (previous, turn_id))


def _forget_results(c: sqlite3.Connection) -> None:
    doomed = set(_column(c, "SELECT id FROM doomed"))
    stale = []
    for row_id, blob in c.execute("SELECT id, turn_ids FROM result_sets"):
        ids = array("q")
        ids.frombytes(blob)
        if not doomed.isdisjoint(ids):
            stale.append((row_id,))
    c.executemany("DELETE FROM result_sets WHERE id = ?", stale)


def _column(c: sqlite3.Connection, statement: str) -> tuple[int, ...]:
    return tuple(row[0] for row in c.execute(statement))
