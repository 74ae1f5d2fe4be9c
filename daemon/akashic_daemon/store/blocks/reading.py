"""Reading payloads: neighbours on the disk in one sweep, into buffers that the caller owns, every byte verified.

The index was asked before; nothing here touches SQLite, so a `Reads` may be iterated on any thread. Until it is closed,
compaction leaves the files that it reads. Nothing raises: what can't be given is a Miss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType

from akashic_daemon.store.blocks.extents import Extent, Extents
from akashic_daemon.store.blocks.files import read_all
from akashic_daemon.store.blocks.index import Row
from akashic_daemon.store.blocks.layout import (
    FILE_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    key_hash,
    parse_record_header,
    payload_checksum,
    record_checksum,
)
from akashic_daemon.store.blocks.notes import Notes
from akashic_daemon.store.blocks.record import Bytes, Entry, Found, Miss, MissReason

SWEEP_BYTES = 8 << 20
"""Records that lie side by side are read with one call up to this size; a larger one is read alone."""

Into = Callable[[Entry], bytearray | memoryview | None]
"""Gives the buffer for a record's payload, at least `size_bytes` long; None passes the record over.

It is asked for all records of a sweep before the first of them is given: no two of these may share a buffer.
"""


def damage(row: Row, header: Bytes | None, payload: Bytes) -> str | None:
    """Return what is wrong with a record that was read, None when it is what was written. `header`: None if inline."""
    checksum = payload_checksum(payload)
    entry = row.entry
    if header is not None:
        told = parse_record_header(header)
        if told is None:
            return "its header is damaged"
        if told.key_hash != key_hash(entry.key):
            return "another record lies at its place"
        if told.size_bytes != entry.size_bytes:
            return f"its header tells {told.size_bytes} bytes, the index {entry.size_bytes}"
        if told.payload_checksum != checksum:
            return "its payload isn't what was written"
    if record_checksum(entry.key, entry.kind.value, entry.fingerprint, entry.token_ids, checksum) != row.checksum:
        return "its payload, key, fingerprint or token ids aren't what was written"
    return None


class Reads:
    """The records of one request, in order: Found or Miss. Use it in a `with`, so that its files are let go."""

    def __init__(
        self,
        extents: Extents,
        notes: Notes,
        rows: Sequence[Row],
        into: Into | None,
        now_s: Callable[[], float],
        *,
        sweep_bytes: int = SWEEP_BYTES,
    ) -> None:
        self._extents = extents
        self._notes = notes
        self._rows = rows
        self._into = into or (lambda entry: bytearray(entry.size_bytes))
        self._now_s = now_s
        self._sweep_bytes = sweep_bytes
        self._leases = ExitStack()
        self._held: dict[int, Extent] = {}
        self._unopened: dict[int, str] = {}
        for number in sorted({row.extent for row in rows if row.extent is not None}):
            try:
                self._held[number] = self._leases.enter_context(extents.leased(number))
            except OSError as error:
                self._unopened[number] = error.strerror or str(error)
            except KeyError:
                self._unopened[number] = "the store doesn't know it"

    def __enter__(self) -> Reads:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._leases.close()
        self._held = {}

    def __iter__(self) -> Iterator[Found | Miss]:
        run: list[tuple[Row, memoryview]] = []
        for row in self._rows:
            wrong = self._misplaced(row)
            if run and (wrong or not _continues(run, row, self._sweep_bytes)):
                yield from self._read(run)
                run = []
            if wrong:
                self._notes.damage(row, wrong)
                yield Miss(row.entry.key, MissReason.DAMAGED, wrong)
                continue
            buffer = self._into(row.entry)
            if buffer is None:
                continue
            view = memoryview(buffer).cast("B")
            if len(view) < row.entry.size_bytes:
                yield from self._read(run)
                run = []
                yield Miss(row.entry.key, MissReason.BUFFER, f"{len(view)} bytes can't hold {row.entry.size_bytes}")
                continue
            run.append((row, view[: row.entry.size_bytes]))
        yield from self._read(run)

    def _misplaced(self, row: Row) -> str | None:
        """Say why a row's size or place is impossible, before a buffer of that size is asked for."""
        if row.extent is None:
            return None if row.payload is not None and len(row.payload) == row.entry.size_bytes else "its size is wrong"
        extent = self._held.get(row.extent)
        if row.entry.size_bytes < 0 or row.offset_bytes < FILE_HEADER_BYTES:
            return "its size or place is wrong"
        if extent is not None and row.offset_bytes + row.stored_bytes > extent.end_bytes:
            return "it ends behind its extent"
        return None

    def _read(self, run: list[tuple[Row, memoryview]]) -> Iterator[Found | Miss]:
        if not run:
            return
        first = run[0][0]
        if first.extent is None:
            view = run[0][1]
            view[:] = first.payload or b""
            yield self._judge(first, None, view, is_whole=True)
            return
        if first.extent not in self._held:
            why = self._unopened.get(first.extent, "it isn't held any more")
            yield from (Miss(row.entry.key, MissReason.UNREADABLE, f"extent {first.extent}: {why}") for row, _ in run)
            return
        extent = self._held[first.extent]
        headers = [memoryview(bytearray(RECORD_HEADER_BYTES)) for _ in run]
        parts = [part for header, (_, view) in zip(headers, run, strict=True) for part in (header, view)]
        try:
            count = read_all(self._extents.files, extent.fd, parts, first.offset_bytes)
        except OSError as error:
            why = f"reading {extent.path}: {error.strerror or error}"
            yield from (Miss(row.entry.key, MissReason.UNREADABLE, why) for row, _ in run)
            return
        for header, (row, view) in zip(headers, run, strict=True):
            end = row.offset_bytes - first.offset_bytes + row.stored_bytes
            yield self._judge(row, header, view, is_whole=end <= count)

    def _judge(self, row: Row, header: memoryview | None, view: memoryview, *, is_whole: bool) -> Found | Miss:
        wrong = damage(row, header, view) if is_whole else "its payload is cut off"
        if wrong is None:
            self._notes.read(row, self._now_s())
            return Found(row.entry, view)
        self._notes.damage(row, wrong)
        return Miss(row.entry.key, MissReason.DAMAGED, wrong)


def _continues(run: list[tuple[Row, memoryview]], row: Row, sweep_bytes: int) -> bool:
    """Whether a record lies right behind the run, and one call may read both."""
    first, last = run[0][0], run[-1][0]
    return (
        row.extent is not None
        and row.extent == last.extent
        and row.offset_bytes == last.offset_bytes + last.stored_bytes
        and row.offset_bytes + row.stored_bytes - first.offset_bytes <= sweep_bytes
        and len(run) < 500  # two buffers each, and the system takes 1024
    )
