"""Counts of what moved between the tiers: plain numbers, written where they arise, read by anyone."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Moves:
    """What the mover did, in bytes and blocks."""

    demoted_bytes: int = 0
    demoted_blocks: int = 0
    promoted_ram_bytes: int = 0
    promoted_ram_blocks: int = 0
    promoted_ssd_bytes: int = 0
    promoted_ssd_blocks: int = 0
    ram_evicted_bytes: int = 0
    ram_evicted_blocks: int = 0
    prefetched_bytes: int = 0
    """Read from disk into RAM before anybody needed it."""
    prefetch_used_bytes: int = 0
    prefetch_wasted_bytes: int = 0
    """Evicted from RAM before anybody needed it."""
    lost_blocks: dict[str, int] = field(default_factory=dict)
    """Last copies that went, by reason."""

    def lose(self, reason: str, count: int = 1) -> None:
        """Count blocks of which no copy is left."""
        self.lost_blocks[reason] = self.lost_blocks.get(reason, 0) + count
