"""The RAM tier's memory: slots of one size in an anonymous mapping, so that what is free always fits.

The budget is hard: slots are reserved before anything is copied, and a reservation that doesn't fit gives None. Memory is
touched lazily. Slots that were touched are used again before fresh ones, so no more stays resident than was ever used
at once; an arena that empties gives its pages back. Knows neither blocks nor who owns what.

One thread may reserve, write and free while another reads: a lock guards the lists of slots, copies run outside of it
and without the GIL.
"""

from __future__ import annotations

import heapq
import mmap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from threading import Lock

import numpy as np
import numpy.typing as npt

from akashic_daemon.store.blocks.record import Bytes


@dataclass(frozen=True, slots=True, eq=False)
class Slots:
    """A reservation: which slots, and how many bytes in them. Each is itself: two are never equal."""

    numbers: tuple[int, ...]
    size_bytes: int


class Arena:
    """Memory for at most `budget_bytes`, in slots of `slot_bytes`, rounded up to whole pages."""

    def __init__(self, budget_bytes: int, slot_bytes: int) -> None:
        assert budget_bytes >= 0
        assert slot_bytes > 0
        self.slot_bytes = -(-slot_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.budget_bytes = budget_bytes
        """The most that slots may take."""
        self.slots_total = budget_bytes // self.slot_bytes
        """Slots that the budget allows."""
        self._lock = Lock()
        self._live: set[Slots] = set()
        self._used = 0
        self._payload_bytes = 0
        self._warm: list[int] = []
        """Free slots whose pages are resident: a heap."""
        self._fresh = 0
        """Slots from here on were never touched."""
        self._memory: mmap.mmap | None = None
        self._rows = np.empty((0, self.slot_bytes), np.uint8)
        """The mapping's slots."""
        if self.slots_total:
            size_bytes = self.slots_total * self.slot_bytes
            self._memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._rows = np.frombuffer(self._memory, np.uint8).reshape(self.slots_total, self.slot_bytes)

    # -- figures -----------------------------------------------------------------------------------------------

    @property
    def payloads(self) -> int:
        """Reservations that stand."""
        return len(self._live)

    @property
    def slots_used(self) -> int:
        """Slots that are reserved."""
        return self._used

    @property
    def used_bytes(self) -> int:
        """Bytes of the reserved slots: what counts against the budget."""
        return self._used * self.slot_bytes

    @property
    def free_bytes(self) -> int:
        """Bytes of the slots that can still be reserved."""
        return (self.slots_total - self._used) * self.slot_bytes

    @property
    def payload_bytes(self) -> int:
        """Bytes that were asked for."""
        return self._payload_bytes

    # -- use ---------------------------------------------------------------------------------------------------

    def slots_needed(self, size_bytes: int) -> int:
        """Return how many slots a payload takes."""
        return -(-size_bytes // self.slot_bytes)

    def reserve(self, size_bytes: int) -> Slots | None:
        """Take slots for a payload; None when the budget has no room for it."""
        assert size_bytes >= 0
        count = self.slots_needed(size_bytes)
        with self._lock:
            if self._used + count > self.slots_total:
                return None
            slots = Slots(tuple(self._take() for _ in range(count)), size_bytes)
            self._live.add(slots)
            self._used += count
            self._payload_bytes += size_bytes
            return slots

    def write(self, slots: Slots, data: Bytes | npt.NDArray[np.uint8]) -> None:
        """Copy a payload of exactly the reserved size into its slots."""
        source = np.frombuffer(data, np.uint8)
        assert len(source) == slots.size_bytes, f"{len(source)} bytes for slots of {slots.size_bytes}"
        at = 0
        for part in self._parts(slots):
            part[:] = source[at : at + len(part)]
            at += len(part)

    def read(self, slots: Slots, into: memoryview | npt.NDArray[np.uint8]) -> memoryview:
        """Copy a payload into the caller's buffer; return the filled part of it."""
        target = np.frombuffer(into, np.uint8)
        assert len(target) >= slots.size_bytes, f"{len(target)} bytes can't hold {slots.size_bytes}"
        at = 0
        for part in self._parts(slots):
            target[at : at + len(part)] = part
            at += len(part)
        return target.data[: slots.size_bytes]

    def free(self, slots: Slots) -> None:
        """Give slots back. Nobody may be reading or writing them."""
        with self._lock:
            self._check(slots)
            self._live.remove(slots)
            self._used -= len(slots.numbers)
            self._payload_bytes -= slots.size_bytes
            for number in slots.numbers:
                heapq.heappush(self._warm, number)
            if not self._used:
                self._give_pages_back()

    # -- inside ------------------------------------------------------------------------------------------------

    def _take(self) -> int:
        if self._warm:
            return heapq.heappop(self._warm)
        self._fresh += 1
        return self._fresh - 1

    def _check(self, slots: Slots) -> None:
        assert slots in self._live, "these slots were freed"

    def _parts(self, slots: Slots) -> Iterator[npt.NDArray[np.uint8]]:
        """Give the memory of a payload in order, neighbours as one."""
        with self._lock:
            self._check(slots)
        left = slots.size_bytes
        for first, end in _runs(slots.numbers):
            part = self._rows[first:end].reshape(-1)[:left]
            left -= len(part)
            yield part

    def _give_pages_back(self) -> None:
        if self._memory is not None and self._fresh:
            self._memory.madvise(mmap.MADV_DONTNEED, 0, self._fresh * self.slot_bytes)
        self._warm, self._fresh = [], 0


def _runs(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Give the runs of neighbouring slots, in the given order: where each begins and ends."""
    run: tuple[int, int] | None = None
    for number in numbers:
        if run is not None and run[1] == number:
            run = (run[0], number + 1)
            continue
        if run is not None:
            yield run
        run = (number, number + 1)
    if run is not None:
        yield run
