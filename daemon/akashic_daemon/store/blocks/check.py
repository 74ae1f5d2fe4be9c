"""Look for damage in a block store, both ways: what the index names and isn't there, and what is there and nothing names.

Reads every byte of every extent, dead ones too. Changes nothing unless asked; then damaged records go into quarantine,
torn tails are cut, and extents with damage outside of records are written anew. A file that isn't ours is never touched.
In between `BlockStore.pause` lets others read.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from enum import StrEnum

from akashic_daemon.errors import StoreUnwritable
from akashic_daemon.store.blocks import index
from akashic_daemon.store.blocks.compaction import compact
from akashic_daemon.store.blocks.extents import Extent
from akashic_daemon.store.blocks.files import FileOps, read_all
from akashic_daemon.store.blocks.index import Row
from akashic_daemon.store.blocks.layout import (
    FILE_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    file_version,
    parse_record_header,
    payload_checksum,
)
from akashic_daemon.store.blocks.reading import damage
from akashic_daemon.store.blocks.slices import Pace
from akashic_daemon.store.blocks.store import BlockStore


class Kind(StrEnum):
    """What is wrong. Labels and orphans are found by who knows what token ids mean (`tiers.labels`)."""

    DAMAGED_INDEX = "damaged_index"
    DANGLING = "dangling"
    NO_GROUP = "no_group"
    NO_PAYLOAD = "no_payload"
    WRONG_CHECKSUM = "wrong_checksum"
    WRONG_SIZE = "wrong_size"
    WRONG_LABEL = "wrong_label"
    ORPHAN = "orphan"
    DAMAGED_EXTENT = "damaged_extent"
    UNCOMMITTED_TAIL = "uncommitted_tail"
    UNREADABLE = "unreadable"
    UNKNOWN_FILE = "unknown_file"


_OF_RECORD = frozenset({Kind.NO_GROUP, Kind.NO_PAYLOAD, Kind.WRONG_CHECKSUM, Kind.WRONG_SIZE})


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: what kind, with what, and what was seen. Holds nothing of a payload."""

    kind: Kind
    subject: str
    detail: str
    row: Row | None = None
    extent: int | None = None


def check(store: BlockStore, *, fix: bool = False) -> list[Finding]:
    """Return everything that is wrong. Raises StoreError when the index can't be read, or mended where asked."""
    store.flush()
    findings = list(_of_index(store))
    # A damaged index is asked no further: its answers would be guesses.
    if any(f.kind is Kind.DAMAGED_INDEX for f in findings):
        return findings
    with store.database.reading() as c:
        findings += [Finding(Kind.NO_GROUP, _name(row), "no group names it", row) for row in index.without_group(c)]
    by_extent: dict[int, list[Row]] = {}
    for row in store.in_pages(index.records):
        if row.extent is not None:
            by_extent.setdefault(row.extent, []).append(row)
        elif wrong := _inline(row):
            findings.append(wrong)
    known = {e.number: e for e in store.extents}
    scan = _Scan(store.extents.files, Pace(store.pause))
    for number in sorted(by_extent.keys() | known.keys()):
        rows = sorted(by_extent.get(number, []), key=lambda row: row.offset_bytes)
        findings += scan.extent(known.get(number), rows)
    findings += _unknown_files(store)
    if fix:
        _mend(store, findings)
    return findings


def _name(row: Row) -> str:
    return f"record {row.entry.key}"


def _of_index(store: BlockStore) -> Iterator[Finding]:
    for line in store.database.examine("PRAGMA integrity_check", meanwhile=store.pause):
        if line != ("ok",):
            yield Finding(Kind.DAMAGED_INDEX, "index", str(line[0]))
    for table, row_id, parent, _ in store.database.examine("PRAGMA foreign_key_check", meanwhile=store.pause):
        yield Finding(Kind.DANGLING, f"{table} {row_id or ''}".strip(), f"it names a row of {parent} that isn't there")


def _inline(row: Row) -> Finding | None:
    payload = row.payload or b""
    if len(payload) != row.entry.size_bytes:
        detail = f"its payload has {len(payload)} bytes, the index tells {row.entry.size_bytes}"
        return Finding(Kind.WRONG_SIZE, _name(row), detail, row)
    wrong = damage(row, None, payload)
    return Finding(Kind.WRONG_CHECKSUM, _name(row), wrong, row) if wrong else None


class _Scan:
    """Reads extents whole."""

    def __init__(self, files: FileOps, pace: Pace) -> None:
        self._files = files
        self._pace = pace

    def extent(self, extent: Extent | None, rows: list[Row]) -> Iterator[Finding]:
        """Find what is wrong in one extent, and with the rows that say that they lie there."""
        if extent is None:
            for row in rows:
                yield Finding(Kind.NO_PAYLOAD, _name(row), f"extent {row.extent} isn't there", row)
            return
        try:
            fd = self._files.open(extent.path)
        except OSError as error:
            yield Finding(Kind.UNREADABLE, extent.path.name, error.strerror or str(error), extent=extent.number)
            return
        try:
            yield from self._whole(fd, extent, rows)
        except OSError as error:
            yield Finding(Kind.UNREADABLE, extent.path.name, error.strerror or str(error), extent=extent.number)
        finally:
            self._files.close(fd)

    def _whole(self, fd: int, extent: Extent, rows: list[Row]) -> Iterator[Finding]:
        number, name, size = extent.number, extent.path.name, self._files.size(fd)
        header = memoryview(bytearray(FILE_HEADER_BYTES))
        if read_all(self._files, fd, [header], 0) < len(header) or file_version(header, number) is None:
            yield Finding(Kind.DAMAGED_EXTENT, name, "its file header is damaged", extent=number)
        if size > extent.end_bytes:
            detail = f"{size - extent.end_bytes} bytes behind its end, which the index doesn't name"
            yield Finding(Kind.UNCOMMITTED_TAIL, name, detail, extent=number)
        left = {row.offset_bytes: row for row in rows}
        for row in rows:
            if left[row.offset_bytes] is not row:
                yield Finding(Kind.WRONG_SIZE, _name(row), "another record lies at its place", row)
        at = FILE_HEADER_BYTES
        while at < extent.end_bytes:
            end = yield from self._record(fd, extent, at, left.pop(at, None))
            at = end if end is not None else min((o for o in left if o > at), default=extent.end_bytes)
        for row in left.values():
            yield Finding(Kind.NO_PAYLOAD, _name(row), f"no record begins at its place in {name}", row)

    def _record(self, fd: int, extent: Extent, at: int, row: Row | None) -> Generator[Finding, None, int | None]:
        """Find what is wrong with the record that begins at `at`; return where it ends, None when that can't be told."""
        header = memoryview(bytearray(RECORD_HEADER_BYTES))
        count = read_all(self._files, fd, [header], at)
        told = parse_record_header(header) if count == len(header) else None
        if told is None or at + RECORD_HEADER_BYTES + told.size_bytes > extent.end_bytes:
            if row is None:
                detail = f"no sound record begins at byte {at}"
                yield Finding(Kind.DAMAGED_EXTENT, extent.path.name, detail, extent=extent.number)
                return None
            kind = Kind.NO_PAYLOAD if count < len(header) else Kind.WRONG_CHECKSUM
            yield Finding(kind, _name(row), f"its header in {extent.path.name} is cut off or damaged", row)
            return at + row.stored_bytes if row.entry.size_bytes >= 0 else None
        payload = memoryview(bytearray(told.size_bytes))
        self._pace.did(told.size_bytes)
        is_whole = read_all(self._files, fd, [payload], at + RECORD_HEADER_BYTES) == len(payload)
        if row is None:
            if not is_whole or payload_checksum(payload) != told.payload_checksum:
                detail = f"the deleted record at byte {at} is damaged"
                yield Finding(Kind.DAMAGED_EXTENT, extent.path.name, detail, extent=extent.number)
        elif not is_whole:
            yield Finding(Kind.NO_PAYLOAD, _name(row), f"its payload in {extent.path.name} is cut off", row)
        elif told.size_bytes != row.entry.size_bytes:
            detail = f"its header tells {told.size_bytes} bytes, the index {row.entry.size_bytes}"
            yield Finding(Kind.WRONG_SIZE, _name(row), detail, row)
        elif wrong := damage(row, header, payload):
            yield Finding(Kind.WRONG_CHECKSUM, _name(row), wrong, row)
        return at + RECORD_HEADER_BYTES + told.size_bytes


def _unknown_files(store: BlockStore) -> Iterator[Finding]:
    ours = {e.path.name for e in store.extents} | {store.extents.path(n).name for n in store.extents.retired}
    for path in sorted(store.extents.folder.iterdir()):
        if path.name not in ours:
            yield Finding(Kind.UNKNOWN_FILE, path.name, "the index doesn't know it")


def _mend(store: BlockStore, findings: list[Finding]) -> None:
    for finding in findings:
        if finding.kind in _OF_RECORD and finding.row is not None:
            store.notes.damage(finding.row, finding.detail)
    store.flush()
    with store.database.transaction() as c:
        index.drop_dangling(c)
    try:
        for extent in store.extents:
            if any(f.kind is Kind.UNCOMMITTED_TAIL and f.extent == extent.number for f in findings):
                with store.extents.leased(extent.number):
                    store.extents.files.truncate(extent.fd, extent.end_bytes)
                    extent.disk_bytes = extent.end_bytes
    except OSError as error:
        raise StoreUnwritable(
            f"cutting a torn tail in {store.extents.folder}: {error.strerror or error}",
            hint="free disk space or fix permissions; what was stored is intact",
        ) from error
    spoilt = {f.extent for f in findings if f.kind is Kind.DAMAGED_EXTENT}
    spoilt |= {f.row.extent for f in findings if f.row is not None}
    compact(store, dead_share=1.0, also={number for number in spoilt if number is not None})
