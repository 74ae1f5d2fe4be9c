"""The index's rows. Every function works inside the caller's transaction or read."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from akashic_daemon.store.blocks.layout import FILE_HEADER_BYTES, RECORD_HEADER_BYTES
from akashic_daemon.store.blocks.record import Entry, Kind, Record
from akashic_daemon.store.blocks.slices import SLICE_RECORDS

Page = tuple[int, int]
"""The first and last id of a run of records."""

# Damage may change a value's type; casts give readers the types that they expect, and the checksum tells the rest.
_COLUMNS = (
    "r.id, CAST(r.checksum AS BLOB), CAST(r.extent_id AS INTEGER), CAST(r.offset_bytes AS INTEGER), "
    "CAST(r.payload AS BLOB), r.key, r.kind, r.fingerprint, CAST(r.token_ids AS BLOB), CAST(r.size_bytes AS INTEGER), "
    "CAST(r.created_at_s AS REAL), CAST(r.read_at_s AS REAL), CAST(r.read_count AS INTEGER)"
)
_STORED = f"CASE WHEN extent_id IS NULL THEN size_bytes ELSE size_bytes + {RECORD_HEADER_BYTES} END"

_KINDS = {kind.value: kind for kind in Kind}


@dataclass(frozen=True, slots=True)
class Row:
    """A record's row: what is known of it, and where its payload is (in an extent, or here)."""

    id: int
    checksum: bytes
    extent: int | None
    offset_bytes: int
    payload: bytes | None
    entry: Entry

    @property
    def stored_bytes(self) -> int:
        """Bytes that count against the budget."""
        return stored_bytes(self.entry.size_bytes, in_extent=self.extent is not None)


class Lying(NamedTuple):
    """A record in an extent."""

    id: int
    key: str
    stored_bytes: int


class Usage(NamedTuple):
    """A record in one of its groups: where, what it takes, and when it was last used."""

    key: str
    group: str
    sequence: int
    stored_bytes: int
    used_at_s: float


def stored_bytes(size_bytes: int, *, in_extent: bool) -> int:
    """Return what a payload takes."""
    return size_bytes + RECORD_HEADER_BYTES * in_extent


def by_key(c: sqlite3.Connection, key: str) -> Row | None:
    """Return the record of a key."""
    return next(_rows(c, "WHERE r.key = ?", (key,)), None)


def by_id(c: sqlite3.Connection, row_id: int) -> Row | None:
    """Return the record of a row."""
    return next(_rows(c, "WHERE r.id = ?", (row_id,)), None)


def of_group(c: sqlite3.Connection, group: str) -> list[Row]:
    """Return a group's records in order."""
    clause = "JOIN members m ON m.record_id = r.id WHERE m.group_name = ? ORDER BY m.sequence, r.id"
    return list(_rows(c, clause, (group,)))


def pages(c: sqlite3.Connection) -> list[Page]:
    """Return ranges of ids that cover all records, SLICE_RECORDS in each, the oldest first."""
    ids = [row_id for (row_id,) in c.execute("SELECT id FROM records ORDER BY id")]
    return [(ids[at], ids[at : at + SLICE_RECORDS][-1]) for at in range(0, len(ids), SLICE_RECORDS)]


def of_fingerprint(c: sqlite3.Connection, kind: Kind, fingerprint: str, page: Page) -> list[Row]:
    """Return the records of a kind that were stored under a fingerprint, the oldest first."""
    clause = "WHERE r.kind = ? AND r.fingerprint = ? AND r.id BETWEEN ? AND ? ORDER BY r.id"
    return list(_rows(c, clause, (kind.value, fingerprint, *page)))


def fingerprints(c: sqlite3.Connection, kind: Kind) -> list[str]:
    """Return the fingerprints under which records of a kind were stored."""
    rows = c.execute("SELECT DISTINCT fingerprint FROM records WHERE kind = ? ORDER BY 1", (kind.value,))
    return [fingerprint for (fingerprint,) in rows]


def selected(c: sqlite3.Connection, kind: Kind, used_before_s: float | None, other_than: str | None) -> list[str]:
    """Return the keys of a kind, of these where asked only what was unused since, and of other fingerprints."""
    clause = "WHERE kind = ? AND (? IS NULL OR read_at_s < ?) AND (? IS NULL OR fingerprint <> ?) ORDER BY id"
    args = (kind.value, used_before_s, used_before_s, other_than, other_than)
    return [key for (key,) in c.execute(f"SELECT key FROM records {clause}", args)]


def in_extents(c: sqlite3.Connection, numbers: Sequence[int]) -> list[Lying]:
    """Return the records of some extents, those of one group together and in order."""
    marks = ",".join("?" * len(numbers))
    # With a bare column beside min() SQLite takes it from the row of the minimum.
    clause = (
        "LEFT JOIN (SELECT record_id, min(group_name) AS home, sequence FROM members GROUP BY record_id) m "
        f"ON m.record_id = r.id WHERE r.extent_id IN ({marks}) ORDER BY m.home, m.sequence, r.id"
    )
    rows = c.execute(f"SELECT r.id, r.key, CAST({_STORED} AS INTEGER) FROM records r {clause}", numbers)
    return [Lying(*row) for row in rows]


def records(c: sqlite3.Connection, page: Page) -> list[Row]:
    """Return the records of a page."""
    return list(_rows(c, "WHERE r.id BETWEEN ? AND ? ORDER BY r.id", page))


def _rows(c: sqlite3.Connection, clause: str, args: Sequence[object]) -> Iterator[Row]:
    for row_id, checksum, extent, offset, payload, key, kind, *rest in c.execute(
        f"SELECT {_COLUMNS} FROM records r {clause}", args
    ):
        entry = Entry(key, _KINDS.get(kind, Kind.UNKNOWN), *rest)
        yield Row(row_id, checksum, extent, offset, payload, entry)


def add(
    c: sqlite3.Connection,
    record: Record,
    checksum: bytes,
    place: tuple[int, int] | None,
    payload: bytes | None,
    now_s: float,
) -> None:
    """Add a record. It has either a place (extent, offset) or its payload here."""
    extent, offset = place or (None, 0)
    row = (record.key, record.kind.value, record.fingerprint, record.token_ids, len(record.payload), checksum)
    c.execute(
        "INSERT INTO records (key, kind, fingerprint, token_ids, size_bytes, checksum, extent_id, offset_bytes, "
        "payload, created_at_s, read_at_s) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*row, extent, offset, payload, now_s, now_s),
    )


def fill(
    c: sqlite3.Connection,
    row_id: int,
    record: Record,
    checksum: bytes,
    place: tuple[int, int] | None,
    payload: bytes | None,
    now_s: float,
) -> None:
    """Give a record without a payload the one of `record`, which has its key; its groups stay. Otherwise as `add`."""
    extent, offset = place or (None, 0)
    row = (record.kind.value, record.fingerprint, record.token_ids, len(record.payload), checksum, extent, offset)
    c.execute(
        "UPDATE records SET kind = ?, fingerprint = ?, token_ids = ?, size_bytes = ?, checksum = ?, extent_id = ?, "
        "offset_bytes = ?, payload = ?, read_at_s = max(read_at_s, ?) WHERE id = ?",
        (*row, payload, now_s, row_id),
    )


def join(c: sqlite3.Connection, record: Record) -> None:
    """Let a stored record belong to a group; that it does already is no error."""
    c.execute(
        "INSERT OR IGNORE INTO members SELECT ?, ?, id FROM records WHERE key = ?",
        (record.group, record.sequence, record.key),
    )


def join_as_elsewhere(c: sqlite3.Connection, group: str, row_id: int) -> None:
    """Let a record belong to a group, at the sequence number that it has in another; one that does already stays."""
    c.execute(
        "INSERT INTO members SELECT ?, min(sequence), record_id FROM members WHERE record_id = ? "
        "AND NOT EXISTS (SELECT 1 FROM members WHERE group_name = ? AND record_id = ?) GROUP BY record_id",
        (group, row_id, group, row_id),
    )


def move(c: sqlite3.Connection, row_id: int, extent: int, offset_bytes: int) -> None:
    """Let a record lie elsewhere."""
    c.execute("UPDATE records SET extent_id = ?, offset_bytes = ? WHERE id = ?", (extent, offset_bytes, row_id))


def set_end(c: sqlite3.Connection, number: int, end_bytes: int) -> None:
    """Say where an extent ends; a new one becomes known by it."""
    c.execute(
        "INSERT INTO extents VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET end_bytes = excluded.end_bytes",
        (number, end_bytes),
    )


def remove_rows(c: sqlite3.Connection, ids: Iterable[int]) -> None:
    """Remove records."""
    c.executemany("DELETE FROM records WHERE id = ?", ((i,) for i in ids))


def leave_group(c: sqlite3.Connection, group: str) -> list[Row]:
    """Dissolve a group; return its records that belong to no other."""
    rows = of_group(c, group)
    c.execute("DELETE FROM members WHERE group_name = ?", (group,))
    left = "SELECT 1 FROM members WHERE record_id = ?"
    return list({r.id: r for r in rows if c.execute(left, (r.id,)).fetchone() is None}.values())


def quarantine(c: sqlite3.Connection, row_id: int, reason: str, now_s: float) -> bool:
    """Move a record's row aside, without payload and token ids; False when it is gone."""
    moved = c.execute(
        "INSERT INTO quarantine (key, kind, fingerprint, size_bytes, extent_id, offset_bytes, reason, at_s) "
        "SELECT key, kind, fingerprint, size_bytes, extent_id, offset_bytes, ?, ? FROM records WHERE id = ?",
        (reason, now_s, row_id),
    ).rowcount
    c.execute("DELETE FROM records WHERE id = ?", (row_id,))
    return moved == 1


def note_read(c: sqlite3.Connection, row_id: int, count: int, at_s: float) -> None:
    """Count reads; a clock that went backwards makes nothing older."""
    c.execute(
        "UPDATE records SET read_count = read_count + ?, read_at_s = max(read_at_s, ?) WHERE id = ?",
        (count, at_s, row_id),
    )


def count_up(c: sqlite3.Connection, name: str, by: int) -> None:
    """Add to a counter."""
    c.execute(
        "INSERT INTO counters VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = value + excluded.value", (name, by)
    )


def set_counter(c: sqlite3.Connection, name: str, value: int) -> None:
    """Let a counter have a value."""
    c.execute(
        "INSERT INTO counters VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value", (name, value)
    )


def counters(c: sqlite3.Connection) -> dict[str, int]:
    """Return the counters by name."""
    return dict(c.execute("SELECT name, value FROM counters"))


def ends(c: sqlite3.Connection) -> dict[int, int]:
    """Return where each extent ends."""
    return dict(c.execute("SELECT id, CAST(end_bytes AS INTEGER) FROM extents ORDER BY id"))


def faults(c: sqlite3.Connection) -> list[str]:
    """Return what is wrong with the index itself: its file, and records that lie in no known extent."""
    wrong = [line for (line,) in c.execute("PRAGMA integrity_check") if line != "ok"]
    outside = c.execute(
        f"SELECT r.key FROM records r LEFT JOIN extents e ON e.id = r.extent_id WHERE r.extent_id IS NOT NULL "
        f"AND coalesce(r.offset_bytes + {_STORED} > e.end_bytes, 1)"
    )
    return wrong + [f"record {key} lies outside of the known extents" for (key,) in outside]


def last_number(c: sqlite3.Connection) -> int:
    """Return the highest number that an extent ever had."""
    row = c.execute("SELECT seq FROM sqlite_sequence WHERE name = 'extents'").fetchone()
    return int(row[0]) if row else 0


def live_bytes(c: sqlite3.Connection) -> dict[int, int]:
    """Return how much of each extent its header and live records take."""
    rows = c.execute(
        f"SELECT e.id, coalesce((SELECT sum({_STORED}) FROM records WHERE extent_id = e.id), 0) FROM extents e"
    )
    return {number: FILE_HEADER_BYTES + int(live) for number, live in rows}


def inline_bytes(c: sqlite3.Connection) -> int:
    """Return the bytes of the payloads that stand in the index."""
    return int(c.execute("SELECT coalesce(sum(length(CAST(payload AS BLOB))), 0) FROM records").fetchone()[0])


def drop_empty(c: sqlite3.Connection) -> list[int]:
    """Forget the extents without a record; return their numbers."""
    rows = c.execute(
        "SELECT id FROM extents WHERE id NOT IN (SELECT extent_id FROM records WHERE extent_id IS NOT NULL)"
    )
    numbers = [int(r[0]) for r in rows]
    drop(c, numbers)
    return numbers


def drop(c: sqlite3.Connection, numbers: Iterable[int]) -> None:
    """Forget extents."""
    c.executemany("DELETE FROM extents WHERE id = ?", ((n,) for n in numbers))


def size_bytes(c: sqlite3.Connection) -> int:
    """Return the index's own size, without its log."""
    return int(c.execute("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()").fetchone()[0])


def figures(c: sqlite3.Connection) -> dict[str, int]:
    """Return counts of what is stored, named as in Stats."""
    records, unread = c.execute(
        "SELECT count(*), coalesce(sum(size_bytes) FILTER (WHERE read_count = 0), 0) FROM records"
    ).fetchone()
    groups = c.execute("SELECT count(DISTINCT group_name) FROM members").fetchone()[0]
    aside = c.execute("SELECT count(*) FROM quarantine").fetchone()[0]
    return {"records": records, "never_read_bytes": unread, "groups": groups, "quarantined_now": aside}


def quarantine_cut(c: sqlite3.Connection, number: int, size: int, now_s: float) -> None:
    """Move aside the records of an extent that end behind `size`, where its file ends, and let the extent end there."""
    rows = c.execute(
        f"SELECT id FROM records WHERE extent_id = ? AND offset_bytes + {_STORED} > ?", (number, size)
    ).fetchall()
    for (row_id,) in rows:
        quarantine(c, row_id, "its extent is missing or cut off", now_s)
    count_up(c, "quarantined_records", len(rows))
    set_end(c, number, size)


def usage(c: sqlite3.Connection, page: Page) -> list[Usage]:
    """Return the place and use of each record of a page in each of its groups."""
    rows = c.execute(
        f"SELECT r.key, m.group_name, m.sequence, {_STORED}, r.read_at_s FROM records r JOIN members m "
        "ON m.record_id = r.id WHERE r.id BETWEEN ? AND ?",
        page,
    )
    return [Usage(*row) for row in rows]


def without_group(c: sqlite3.Connection) -> list[Row]:
    """Return the records that no group names."""
    return list(_rows(c, "WHERE r.id NOT IN (SELECT record_id FROM members)", ()))


def drop_dangling(c: sqlite3.Connection) -> None:
    """Let no group name a record that isn't there."""
    c.execute("DELETE FROM members WHERE record_id NOT IN (SELECT id FROM records)")
