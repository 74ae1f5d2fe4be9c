"""The block store: put, get, read a group in one sweep, delete. Payloads in extents, the index in a database of its own.

A database of its own (`blocks.sqlite`), with its own connection on its own thread: a KV index row must not wait behind a
session's commit, which an answer waits for, nor the other way round; and damage to one leaves the other. Use a store on
the thread that opened it; only what `read` gives may be iterated elsewhere.

Order of durability: payload, fsync, index commit. Records are only ever named by the index: what lies behind an extent's
committed end, or in a file that the index doesn't know, was never stored, and opening removes it. Every byte is verified
when it is read; what isn't what was written is a Miss, moved to quarantine, and never served. Reading writes nothing:
what it found out is kept in memory and goes with the next write, or `flush`.

The budget holds at every moment: puts are refused while there is no more than the room that compaction needs to work.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from sqlite3 import Connection
from typing import TypeVar

from akashic_daemon.errors import AkashicError
from akashic_daemon.store.blocks import index
from akashic_daemon.store.blocks.extents import Batch, Extents, Lanes
from akashic_daemon.store.blocks.index import Row
from akashic_daemon.store.blocks.layout import FILE_HEADER_BYTES, payload_checksum, record_checksum, record_header
from akashic_daemon.store.blocks.notes import Noted, Notes
from akashic_daemon.store.blocks.reading import SWEEP_BYTES, Into, Reads, damage
from akashic_daemon.store.blocks.record import (
    Entry,
    Found,
    Kind,
    Miss,
    MissReason,
    Put,
    Record,
    Refusal,
    RefusalReason,
    Removed,
    Stats,
)
from akashic_daemon.store.blocks.slices import sliced
from akashic_daemon.store.database import Database
from akashic_daemon.types import Clock

INLINE_BYTES = 4096
"""Payloads below this stand in the index: a file read for each would cost more than they are."""

T = TypeVar("T")


class BlockStore:
    """An open store; `opening.open_block_store` makes one."""

    def __init__(
        self, database: Database, extents: Extents, lock_fd: int, clock: Clock, *, budget_bytes: int, extent_bytes: int
    ) -> None:
        self.database = database
        self.extents = extents
        self.clock = clock
        self.budget_bytes = budget_bytes
        self.extent_bytes = extent_bytes
        self.lanes = Lanes(extent_bytes)
        self.lanes.adopt(extents)
        self.notes = Notes()
        self.unavailable: AkashicError | None = None
        """Why the last attempt to use the disk failed; None again after one that went well."""
        self.pause: Callable[[], None] = lambda: None
        """Called in the middle of long work, where others may read: nothing else may be done to the store in it."""
        self._lost: list[str] = []
        self._lock_fd = lock_fd
        with database.reading() as c:
            self._inline_bytes = index.inline_bytes(c)

    # -- writing -----------------------------------------------------------------------------------------------

    @property
    def bytes_used(self) -> int:
        """Bytes of payloads and headers, dead ones too as long as their extent stands."""
        return self.extents.used_bytes + self._inline_bytes

    @property
    def missing_bytes(self) -> int:
        """Bytes that are used beyond what puts may take, below 0 where some are free.

        The room of one extent, which may become a few with a header each, is kept for compaction.
        """
        return self.bytes_used + self.extent_bytes + 4 * FILE_HEADER_BYTES - self.budget_bytes

    @property
    def free_bytes(self) -> int:
        """Bytes that puts may still take."""
        return max(0, -self.missing_bytes)

    def put(self, records: Sequence[Record]) -> Put:
        """Store a batch, all or none; the result says why not. Records stored before only join the group.

        One that was stored without a payload is filled by one that has it, and stays in all its groups.
        """
        try:
            return self._available(lambda: self._put(records))
        except AkashicError as error:
            return Put(refusal=Refusal(RefusalReason.UNWRITABLE, str(error), 0, self.free_bytes))

    def _put(self, records: Sequence[Record]) -> Put:
        if self.notes.damaged:
            self.flush()  # a damaged record is out of the way before it is stored anew
        with self.database.reading() as c:
            new = {r.key: r for r in records if _is_new(r, index.by_key(c, r.key))}
        needed = sum(_upper_bound(len(r.payload)) for r in new.values())
        if needed > self.free_bytes:
            detail = f"storing {len(new)} records: they need {needed} bytes, the budget has {self.free_bytes} left"
            return Put(refusal=Refusal(RefusalReason.BUDGET, detail, needed, self.free_bytes))
        checksums = {key: payload_checksum(r.payload) for key, r in new.items()}
        batch = Batch(self.extents)
        noted = Noted()
        damaged: list[Row] = []
        try:
            places = self._append(sorted(new.values(), key=lambda r: (r.group, r.sequence)), checksums, batch)
            batch.sync()
            noted = self.notes.take()
            with self.database.transaction() as c:
                damaged = self._note(c, noted)
                for extent, tail in batch.tails.items():
                    index.set_end(c, extent.number, tail)
                for key, record in new.items():
                    self._add(c, record, checksums[key], places.get(key))
                for record in records:
                    index.join(c, record)
                index.count_up(c, "written_records", len(new))
                index.count_up(c, "written_bytes", sum(len(r.payload) for r in new.values()))
        except BaseException:
            self.notes.give_back(noted)
            self.lanes.drop(batch.tails)  # after a failed write or fsync nothing more goes there
            batch.undo()
            raise
        batch.keep()
        self._lose(damaged)
        self._inline_bytes += sum(len(r.payload) for key, r in new.items() if key not in places)
        stored = sum(index.stored_bytes(len(r.payload), in_extent=key in places) for key, r in new.items())
        return Put(len(new), len({r.key for r in records}) - len(new), stored)

    def _append(
        self, records: Iterable[Record], checksums: Mapping[str, bytes], batch: Batch
    ) -> dict[str, tuple[int, int]]:
        """Write the payloads that don't stand in the index; return where each went."""
        places: dict[str, tuple[int, int]] = {}
        for record in records:
            size_bytes = len(record.payload)
            if size_bytes >= INLINE_BYTES:
                extent = self.lanes.choose(record.group, index.stored_bytes(size_bytes, in_extent=True), batch)
                header = record_header(record.key, size_bytes, checksums[record.key])
                places[record.key] = extent.number, batch.append(extent, header, record.payload)
        return places

    def _add(self, c: Connection, record: Record, checksum: bytes, place: tuple[int, int] | None) -> None:
        whole = record_checksum(record.key, record.kind.value, record.fingerprint, record.token_ids, checksum)
        payload = bytes(record.payload) if place is None else None
        if (stored := index.by_key(c, record.key)) is not None:
            index.fill(c, stored.id, record, whole, place, payload, self.clock.now_s())
        else:
            index.add(c, record, whole, place, payload, self.clock.now_s())

    def join(self, group: str, keys: Iterable[str]) -> list[str]:
        """Let stored records belong to a group too, and count as used; return the keys that aren't stored.

        Each gets the sequence number that it has in another group: what is shared is a beginning. Raises StoreError.
        """
        wanted = list(keys)
        return self._available(lambda: self._join(group, wanted))

    def _join(self, group: str, keys: list[str]) -> list[str]:
        absent: list[str] = []
        with self.database.transaction() as c:
            for key in keys:
                row = index.by_key(c, key)
                if row is None or row.id in self.notes.damaged:
                    absent.append(key)
                    continue
                index.join_as_elsewhere(c, group, row.id)
                self.notes.touch(row, self.clock.now_s())
        return absent

    def delete(self, keys: Iterable[str], *, is_eviction: bool = False) -> Removed:
        """Remove records from all their groups. Raises StoreError when the index can't be written.

        Their bytes are gone from every file after the next `compact`.
        """
        wanted = list(keys)
        return self._available(
            lambda: self._remove(
                lambda c: [row for key in wanted if (row := index.by_key(c, key)) is not None], is_eviction=is_eviction
            )
        )

    def delete_in_slices(self, keys: Iterable[str], *, is_eviction: bool = False) -> Removed:
        """Remove many records, some of them at a time; others may read in between. Otherwise as `delete`."""
        removed = Removed()
        for part in sliced(keys, lambda _key: 0):
            removed += self.delete(part, is_eviction=is_eviction)
            self.pause()
        return removed

    def delete_group(self, group: str, *, is_eviction: bool = False) -> Removed:
        """Dissolve a group and remove its records that belong to no other. Otherwise as `delete`."""
        return self._available(lambda: self._remove(lambda c: index.leave_group(c, group), is_eviction=is_eviction))

    def _remove(self, choose: Callable[[Connection], list[Row]], *, is_eviction: bool) -> Removed:
        self.flush()
        with self.database.transaction() as c:
            rows = list({row.id: row for row in choose(c)}.values())
            index.remove_rows(c, (row.id for row in rows))
            emptied = index.drop_empty(c)
            if is_eviction:
                unread = sum(row.entry.size_bytes for row in rows if row.entry.read_count == 0)
                index.count_up(c, "evicted_records", len(rows))
                index.count_up(c, "evicted_bytes", sum(row.entry.size_bytes for row in rows))
                index.count_up(c, "evicted_unread_bytes", unread)
            else:
                index.count_up(c, "deleted_records", len(rows))
        self.retire(emptied)
        self._inline_bytes -= sum(len(row.payload or b"") for row in rows)
        if is_eviction:
            self.lose(row.entry.key for row in rows)
        return Removed(len(rows), sum(row.stored_bytes for row in rows), tuple(row.entry.key for row in rows))

    def lose(self, keys: Iterable[str]) -> None:
        """Remember that records went without anybody asking for it."""
        self._lost += keys

    def take_lost(self) -> list[str]:
        """Return the keys that eviction or quarantine took since the last call."""
        lost, self._lost = self._lost, []
        return lost

    def _lose(self, damaged: Sequence[Row]) -> None:
        self._inline_bytes -= sum(len(row.payload or b"") for row in damaged)
        self.lose(row.entry.key for row in damaged)

    def retire(self, numbers: Sequence[int]) -> None:
        """Write and read no more in extents that left the index."""
        gone = set(numbers)
        self.lanes.drop([e for e in self.extents if e.number in gone])
        self.extents.retire(numbers)

    # -- reading -----------------------------------------------------------------------------------------------

    def get(self, key: str, into: bytearray | memoryview | None = None) -> Found | Miss:
        """Read one record, verified, into a buffer. Never raises: a Miss says why, and so does `unavailable`."""
        try:
            with self.database.reading() as c:
                row = index.by_key(c, key)
        except AkashicError as error:
            self.unavailable = error
            return Miss(key, MissReason.UNREADABLE, str(error))
        if row is None:
            return Miss(key, MissReason.ABSENT, "it isn't stored")
        if row.id in self.notes.damaged:
            return Miss(key, MissReason.DAMAGED, self.notes.damaged[row.id])
        with self._reads([row], None if into is None else lambda _: into) as reads:
            found = next(iter(reads))
        if isinstance(found, Miss) and found.reason is MissReason.DAMAGED:
            self.try_flush()
        return found

    def read(
        self,
        keys: Iterable[str],
        into: Into | None = None,
        *,
        by_place: bool = False,
        sweep_bytes: int = SWEEP_BYTES,
    ) -> Reads:
        """Return some records to iterate in the order of `keys`; absent ones are left out.

        What lies side by side is read in one sweep. Hold it in a `with`. Raises StoreError when the index can't be read.

        by_place: in the order of the disk instead, so that neighbours come in one sweep. sweep_bytes: the most that is
        read at once; with 0 each record is given before the next is asked for.
        """
        with self.database.reading() as c:
            rows = [row for key in keys if (row := index.by_key(c, key)) is not None]
        if by_place:
            rows.sort(key=lambda row: (row.extent or 0, row.offset_bytes))
        return self._reads(rows, into, sweep_bytes)

    def known(self, keys: Iterable[str]) -> dict[str, int]:
        """Return which of these are stored, and their payloads' sizes. Raises StoreError."""
        with self.database.reading() as c:
            rows = [row for key in keys if (row := index.by_key(c, key)) is not None]
        return {row.entry.key: row.entry.size_bytes for row in rows if row.id not in self.notes.damaged}

    def in_pages(self, read: Callable[[Connection, index.Page], Sequence[T]]) -> Iterator[T]:
        """Yield what `read` gives, for page after page of the records; between two of them others may read.

        Raises StoreError when the index can't be read.
        """
        with self.database.reading() as c:
            pages = index.pages(c)
        for page in pages:
            self.pause()
            with self.database.reading() as c:
                found = read(c, page)
            yield from found

    def entries_of(self, kind: Kind, fingerprint: str, *, as_they_are: bool = False) -> Iterator[Entry]:
        """Yield what is known of all records of a kind and a fingerprint, the oldest first. Raises StoreError.

        Token ids are verified where the payload is empty or stands in the index, else when the payload is read; with
        as_they_are never, and nothing is noted of damage.
        """
        for row in self.in_pages(lambda c, page: index.of_fingerprint(c, kind, fingerprint, page)):
            if not as_they_are and row.extent is None and (wrong := damage(row, None, row.payload or b"")):
                self.notes.damage(row, wrong)
            if row.id not in self.notes.damaged:
                yield row.entry

    def fingerprints(self, kind: Kind) -> list[str]:
        """Return the fingerprints under which records of a kind were stored. Raises StoreError."""
        with self.database.reading() as c:
            return index.fingerprints(c, kind)

    def set_aside(self, wrong: Mapping[str, str]) -> None:
        """Move records into quarantine, by key with the reason why they are of no use. Raises StoreError."""
        with self.database.reading() as c:
            for key, why in wrong.items():
                row = index.by_key(c, key)
                if row is not None:
                    self.notes.damage(row, why)
        self.flush()

    def entries(self, group: str) -> list[Entry]:
        """Return what is known of a group's records, in order. Raises StoreError."""
        with self.database.reading() as c:
            return [row.entry for row in index.of_group(c, group) if row.id not in self.notes.damaged]

    def places(self, group: str) -> dict[str, tuple[int, int]]:
        """Return the extent of each of a group's records, and its place there; not of those in the index itself.

        Raises StoreError.
        """
        with self.database.reading() as c:
            rows = index.of_group(c, group)
        return {row.entry.key: (row.extent, row.offset_bytes) for row in rows if row.extent is not None}

    def select(self, kind: Kind, *, used_before_s: float | None = None, other_than: str | None = None) -> list[str]:
        """Return the keys of a kind; only those unused since a time, or of other fingerprints. Raises StoreError."""
        self.flush()  # what was read lately counts
        with self.database.reading() as c:
            return index.selected(c, kind, used_before_s, other_than)

    def _reads(self, rows: Sequence[Row], into: Into | None, sweep_bytes: int = SWEEP_BYTES) -> Reads:
        return Reads(self.extents, self.notes, rows, into, self.clock.now_s, sweep_bytes=sweep_bytes)

    # -- upkeep ------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write what reading found out: times, counts, and damaged records into quarantine. Raises StoreError."""
        noted = self.notes.take()
        if noted.is_empty:
            return
        try:
            with self.database.transaction() as c:
                damaged = self._note(c, noted)
        except BaseException:
            self.notes.give_back(noted)
            raise
        self._lose(damaged)

    def _note(self, c: Connection, noted: Noted) -> list[Row]:
        """Write what was noted; return the damaged records, which left the index by it."""
        damaged = [row for i in noted.damaged if (row := index.by_id(c, i)) is not None]
        moved = [index.quarantine(c, i, why, self.clock.now_s()) for i, why in noted.damaged.items()]
        for row_id, at_s in noted.used_at_s.items():
            index.note_read(c, row_id, noted.reads.get(row_id, 0), at_s)
        counts = (sum(moved), sum(noted.reads.values()), noted.read_bytes)
        for name, by in zip(("quarantined_records", "read_records", "read_bytes"), counts, strict=True):
            if by:
                index.count_up(c, name, by)
        return damaged

    def try_flush(self) -> bool:
        """Flush where the disk lets us; what it doesn't take stays noted, and `unavailable` says why."""
        if self.notes.is_empty:
            return True  # nothing was tried: that tells nothing of the disk
        try:
            self._available(self.flush)
        except AkashicError:
            return False
        return True

    def stats(self) -> Stats:
        """Return figures. Raises StoreError when the index can't be read."""
        self.try_flush()
        with self.database.reading() as c:
            live = index.live_bytes(c)
            return Stats(
                budget_bytes=self.budget_bytes,
                bytes_used=self.bytes_used,
                dead_bytes=self.extents.used_bytes - sum(live.values()),
                index_bytes=index.size_bytes(c),
                extents=len(self.extents),
                **index.figures(c),
                counters=index.counters(c),
            )

    def counters(self) -> dict[str, int]:
        """Return the counters by name, without what isn't flushed yet. Raises StoreError."""
        with self.database.reading() as c:
            return index.counters(c)

    def set_counters(self, values: Mapping[str, int]) -> None:
        """Let counters have values: for what a user of the store counts from. Raises StoreError."""
        with self.database.transaction() as c:
            for name, value in values.items():
                index.set_counter(c, name, value)

    def close(self) -> None:
        """Write what is noted, close the index and let another process have the store. A second call does nothing."""
        if self._lock_fd < 0:
            return
        self.try_flush()
        self.database.close()
        os.close(self._lock_fd)
        self._lock_fd = -1

    def _available(self, work: Callable[[], T]) -> T:
        """Do something that writes, and remember whether the disk let us."""
        try:
            done = work()
        except AkashicError as error:
            self.unavailable = error
            raise
        self.unavailable = None
        return done


def _is_new(record: Record, stored: Row | None) -> bool:
    return stored is None or (stored.entry.size_bytes == 0 and len(record.payload) > 0)


def _upper_bound(size_bytes: int) -> int:
    """Return the most that a payload can take: it may be the first of an extent."""
    in_extent = size_bytes >= INLINE_BYTES
    return index.stored_bytes(size_bytes, in_extent=in_extent) + FILE_HEADER_BYTES * in_extent
