"""The extents: append-only files, who reads them, where a group's next record goes, and how a failed write is undone.

`end_bytes` is where the index says that an extent ends; `disk_bytes` is how long its file is, more only when a torn tail
couldn't be cut. An extent that left the index is unlinked when its last reader lets go. Leases may be taken and returned
on any thread; everything else belongs to the store's thread.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from akashic_daemon.errors import StoreUnwritable
from akashic_daemon.store.blocks.files import FileOps, write_all
from akashic_daemon.store.blocks.layout import FILE_HEADER_BYTES, file_header
from akashic_daemon.store.blocks.record import Bytes

FILE_NAME = re.compile(r"(\d{4,})\.ext")
LANES = 8
"""So many groups may be written at once, each into an extent of its own; then the one idle longest is shared."""


@dataclass(slots=True, eq=False)
class Extent:
    """One file. `fd` is open while anyone holds a lease.

    is_stuck: something that lives in it couldn't be read when it was to be rewritten, so no room is expected of it.
    """

    number: int
    path: Path
    end_bytes: int
    disk_bytes: int
    fd: int = -1
    leases: int = 0
    is_stuck: bool = False


class Extents:
    """All files of a store."""

    def __init__(self, folder: Path, files: FileOps) -> None:
        self.folder = folder
        self.files = files
        self._lock = Lock()
        self._known: dict[int, Extent] = {}
        self._retired: list[Extent] = []
        self._next_number = 1

    def __iter__(self) -> Iterator[Extent]:
        return iter(sorted(self._known.values(), key=lambda e: e.number))

    def __len__(self) -> int:
        return len(self._known)

    @property
    def used_bytes(self) -> int:
        """Bytes that the files take, those that wait for their readers too."""
        return sum(e.disk_bytes for e in self._known.values()) + sum(e.disk_bytes for e in self._retired)

    def add(self, number: int, end_bytes: int, disk_bytes: int) -> None:
        """Take in an extent that the index knows."""
        self._known[number] = Extent(number, self.path(number), end_bytes, disk_bytes)
        self.skip_numbers(number)

    def skip_numbers(self, last: int) -> None:
        """Give no number up to `last` to a new extent."""
        self._next_number = max(self._next_number, last + 1)

    def path(self, number: int) -> Path:
        """Return the file of an extent."""
        return self.folder / f"{number:04d}.ext"

    def take(self, number: int) -> Extent:
        """Lease an extent; its file stays, open, until `release`. Raises OSError, KeyError for one that isn't there."""
        with self._lock:
            return self._take(self._known[number])

    def _take(self, extent: Extent) -> Extent:
        if extent.leases == 0:
            extent.fd = self.files.open(extent.path)
        extent.leases += 1
        return extent

    def release(self, extent: Extent) -> None:
        """Return a lease; the last one of a retired extent removes its file."""
        with self._lock:
            extent.leases -= 1
            if extent.leases == 0:
                self.files.close(extent.fd)
                extent.fd = -1
        if extent in self._retired:
            self.sweep()

    @contextmanager
    def leased(self, number: int) -> Iterator[Extent]:
        """Hold an extent for a block of code. Raises as `take`."""
        extent = self.take(number)
        try:
            yield extent
        finally:
            self.release(extent)

    def create(self) -> Extent:
        """Make an extent and lease it. The index doesn't know it yet: `end_bytes` is 0. Raises OSError."""
        number = self._next_number
        self._next_number += 1
        path = self.path(number)
        extent = Extent(number, path, 0, FILE_HEADER_BYTES, self.files.create(path), leases=1)
        self._known[number] = extent
        try:
            write_all(self.files, extent.fd, [file_header(number)], 0)
        except BaseException:
            self.release(extent)
            self.retire([number])
            raise
        return extent

    def retire(self, numbers: Iterable[int]) -> None:
        """Take extents out of use; their files go when nobody reads them."""
        with self._lock:
            self._retired += [self._known.pop(number) for number in numbers]
        self.sweep()

    def sweep(self) -> list[int]:
        """Remove the files of retired extents that nobody holds; return the numbers of those still there."""
        with self._lock:
            left: list[Extent] = []
            for extent in self._retired:
                if extent.leases:
                    left.append(extent)
                    continue
                try:
                    self.files.unlink(extent.path)
                except OSError:
                    left.append(extent)  # the next sweep tries again, and opening the store does
            self._retired = left
            return [e.number for e in left]

    @property
    def retired(self) -> list[int]:
        """Extents that left the index and whose files are still there."""
        return [e.number for e in self._retired]


class Batch:
    """Records on their way into extents: appended, synced, and then kept (once the index has them) or undone."""

    def __init__(self, extents: Extents) -> None:
        self._extents = extents
        self.tails: dict[Extent, int] = {}

    def tail(self, extent: Extent) -> int:
        """Return where the extent's next record would go."""
        return self.tails.get(extent, extent.end_bytes)

    def new_extent(self) -> Extent:
        """Make an extent for this batch. Raises StoreUnwritable."""
        with _writing(f"making an extent in {self._extents.folder}"):
            extent = self._extents.create()
        self.tails[extent] = FILE_HEADER_BYTES
        return extent

    def append(self, extent: Extent, header: bytes, payload: Bytes) -> int:
        """Write one record at the extent's tail; return where it begins. Raises StoreUnwritable."""
        with _writing(f"writing {extent.path}"):
            if extent not in self.tails:
                self._extents.take(extent.number)
                self.tails[extent] = extent.end_bytes
            offset = self.tails[extent]
            end = offset + len(header) + len(payload)
            extent.disk_bytes = max(extent.disk_bytes, end)
            write_all(self._extents.files, extent.fd, [header, payload], offset)
        self.tails[extent] = end
        return offset

    def sync(self) -> None:
        """Return when all that was appended is on the disk. Raises StoreUnwritable."""
        with _writing(f"syncing the extents in {self._extents.folder}"):
            for extent in self.tails:
                self._extents.files.sync(extent.fd)
            if any(extent.end_bytes == 0 for extent in self.tails):
                self._extents.files.sync_folder(self._extents.folder)

    def keep(self) -> None:
        """Let the extents end where this batch ended: the index says so now."""
        for extent, tail in self.tails.items():
            extent.end_bytes = extent.disk_bytes = tail
            self._extents.release(extent)
        self.tails = {}

    def undo(self) -> None:
        """Cut what was appended, as far as the disk lets us; what it leaves lies behind the end, and nothing names it."""
        new = [extent for extent in self.tails if extent.end_bytes == 0]
        for extent in self.tails:
            if extent.end_bytes:
                try:
                    self._extents.files.truncate(extent.fd, extent.end_bytes)
                    extent.disk_bytes = extent.end_bytes
                except OSError:
                    pass  # opening the store cuts it; until then its bytes are counted, and no record goes there
            self._extents.release(extent)
        self._extents.retire(extent.number for extent in new)
        self.tails = {}


class Lanes:
    """Chooses the extent for a group's next record, so that a group's records lie together and in order."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lanes: OrderedDict[Extent, str | None] = OrderedDict()  # the one idle longest stands first

    def adopt(self, extents: Iterable[Extent]) -> None:
        """Go on with what an earlier run left open, at most LANES of them."""
        fitting = [e for e in extents if e.end_bytes < self._limit_bytes]
        self._lanes.update((extent, None) for extent in fitting[-LANES:])

    def choose(self, group: str, size_bytes: int, batch: Batch) -> Extent:
        """Return the extent for a record, made where none fits. Raises StoreUnwritable."""
        own = next((e for e, owner in self._lanes.items() if owner == group), None)
        if own is not None and not self._fits(own, size_bytes, batch):
            del self._lanes[own]
            own = None
        if own is None:
            own = self._free(size_bytes, batch)
        self._lanes[own] = group
        self._lanes.move_to_end(own)
        return own

    def drop(self, extents: Iterable[Extent]) -> None:
        """Write no more into these."""
        for extent in extents:
            self._lanes.pop(extent, None)

    def _free(self, size_bytes: int, batch: Batch) -> Extent:
        fitting = [e for e in self._lanes if self._fits(e, size_bytes, batch)]
        unowned = [e for e in fitting if self._lanes[e] is None]
        if unowned:
            return unowned[0]
        if len(self._lanes) < LANES:
            return batch.new_extent()
        if fitting:
            return fitting[0]
        self._lanes.popitem(last=False)
        return batch.new_extent()

    def _fits(self, extent: Extent, size_bytes: int, batch: Batch) -> bool:
        return batch.tail(extent) + size_bytes <= self._limit_bytes


@contextmanager
def _writing(doing: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreUnwritable(
            f"{doing}: {error.strerror or error}",
            hint="free disk space or fix the folder's permissions; what was stored before is intact",
        ) from error
