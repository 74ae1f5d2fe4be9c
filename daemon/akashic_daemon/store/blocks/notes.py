"""What reading found out and the index doesn't know yet: reads of any thread, written later by the store's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock

from akashic_daemon.store.blocks.index import Row


@dataclass(slots=True)
class Noted:
    """Reads by row id, when each was last used, and which aren't what was written."""

    reads: dict[int, int] = field(default_factory=dict)
    used_at_s: dict[int, float] = field(default_factory=dict)
    damaged: dict[int, str] = field(default_factory=dict)
    read_bytes: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not (self.used_at_s or self.damaged)


class Notes:
    """Collects; every method may be called on any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._noted = Noted()

    @property
    def damaged(self) -> dict[int, str]:
        """Rows that must not be served any more, and why."""
        return self._noted.damaged

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return self._noted.is_empty

    def read(self, row: Row, now_s: float) -> None:
        """Count a read."""
        with self._lock:
            self._noted.reads[row.id] = self._noted.reads.get(row.id, 0) + 1
            self._noted.used_at_s[row.id] = now_s
            self._noted.read_bytes += row.entry.size_bytes

    def touch(self, row: Row, now_s: float) -> None:
        """Let a record count as used."""
        with self._lock:
            self._noted.used_at_s[row.id] = now_s

    def damage(self, row: Row, detail: str) -> None:
        """Remember that a record isn't what was written."""
        with self._lock:
            self._noted.damaged.setdefault(row.id, detail)

    def take(self) -> Noted:
        """Return what was noted, and begin anew."""
        with self._lock:
            noted, self._noted = self._noted, Noted()
            return noted

    def give_back(self, noted: Noted) -> None:
        """Take back what couldn't be written."""
        with self._lock:
            later, self._noted = self._noted, noted
            for row_id, count in later.reads.items():
                noted.reads[row_id] = noted.reads.get(row_id, 0) + count
            noted.used_at_s.update(later.used_at_s)
            noted.damaged.update(later.damaged)
            noted.read_bytes += later.read_bytes
