"""Staging: a few equal buffers between the engine and the mover, so that neither waits for the other's memory.

Taking never blocks: where none is free the caller does without, or comes again. Buffers are allocated once and touched
lazily. All methods may be called on any thread; a buffer belongs to whoever took it until it is given back.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """One contiguous piece of memory."""

    array: npt.NDArray[np.uint8]

    def view(self, size_bytes: int) -> memoryview:
        """Return the first bytes of the buffer, writable."""
        assert 0 <= size_bytes <= len(self.array), f"{size_bytes} bytes in a buffer of {len(self.array)}"
        return self.array.data[:size_bytes]


class Staging:
    """A pool of `count` buffers of `size_bytes`."""

    def __init__(self, count: int, size_bytes: int) -> None:
        assert count >= 1
        assert size_bytes >= 1
        self.count = count
        self.size_bytes = size_bytes
        self._lock = Lock()
        self._free = [Buffer(np.empty(size_bytes, np.uint8)) for _ in range(count)]
        self._taken: set[Buffer] = set()

    @property
    def free_count(self) -> int:
        """Buffers that can be taken now."""
        return len(self._free)

    @property
    def total_bytes(self) -> int:
        """What the buffers take when all were used."""
        return self.count * self.size_bytes

    def take(self) -> Buffer | None:
        """Return a buffer, None when all are taken. Its content is whatever the last user left."""
        with self._lock:
            if not self._free:
                return None
            buffer = self._free.pop()
            self._taken.add(buffer)
            return buffer

    def give_back(self, buffer: Buffer) -> None:
        """Let others have the buffer; no view of it may be used any more."""
        with self._lock:
            assert buffer in self._taken, "this buffer wasn't taken from here, or was given back"
            self._taken.remove(buffer)
            self._free.append(buffer)
