"""Long work is done in slices, so short that a request whose blocks are read between two of them hardly notices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

SLICE_BYTES = 8 << 20
"""About so much is copied, synced and committed before others may read: some 40 ms on an SSD."""
SLICE_RECORDS = 256
"""And no more records than these, however small: their rows cost time too."""

T = TypeVar("T")


class Pace:
    """Counts what was done, and calls `pause` whenever it is a slice."""

    def __init__(self, pause: Callable[[], None]) -> None:
        self._pause = pause
        self._records = self._bytes = 0

    def did(self, size_bytes: int = 0, records: int = 1) -> None:
        """Count some work; the pause may come now."""
        self._records += records
        self._bytes += size_bytes
        if is_full(self._records, self._bytes):
            self._records = self._bytes = 0
            self._pause()


def is_full(records: int, size_bytes: int) -> bool:
    """Return whether so many records, of so many bytes, are a slice."""
    return records >= SLICE_RECORDS or size_bytes >= SLICE_BYTES


def sliced(items: Iterable[T], size_bytes: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield the items in their order, a slice at once."""
    part: list[T] = []
    total_bytes = 0
    for item in items:
        size = size_bytes(item)
        if part and (len(part) >= SLICE_RECORDS or total_bytes + size > SLICE_BYTES):
            yield part
            part, total_bytes = [], 0
        part.append(item)
        total_bytes += size
    if part:
        yield part
