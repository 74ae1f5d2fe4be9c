"""Which records go when the budget is full: tails of the groups that nobody used for longest.

A tail without its beginning can't be used, a beginning without its tail can: so a group goes from its end. A record of
several groups goes with the one that was used last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from akashic_daemon.store.blocks import index
from akashic_daemon.store.blocks.compaction import compact
from akashic_daemon.store.blocks.index import Usage
from akashic_daemon.store.blocks.record import Removed
from akashic_daemon.store.blocks.store import BlockStore

_WASTEFUL_SHARE = 0.25
"""An extent with less dead than this is rewritten only when nothing else gives the room."""


@dataclass(frozen=True, slots=True)
class Room:
    """What making room did. `is_enough` is false when what may go doesn't suffice, or readers hold its files."""

    is_enough: bool
    evicted: Removed


def coldest(usage: Iterable[Usage], needed_bytes: int, *, keep: Collection[str] = ()) -> list[str]:
    """Return the keys to evict, in order, until they take `needed_bytes`; never a record of a group in `keep`."""
    rows = list(usage)
    used_at_s: dict[str, float] = {}
    for row in rows:
        used_at_s[row.group] = max(used_at_s.get(row.group, row.used_at_s), row.used_at_s)
    home: dict[str, Usage] = {}
    kept = {row.key for row in rows if row.group in keep}
    for row in rows:
        if row.key not in kept:
            home[row.key] = max(home.get(row.key, row), row, key=lambda r: (used_at_s[r.group], r.group, r.sequence))
    order = sorted(home.values(), key=lambda r: (used_at_s[r.group], r.group, -r.sequence))
    chosen: list[str] = []
    for row in order:
        if needed_bytes <= 0:
            break
        chosen.append(row.key)
        needed_bytes -= row.stored_bytes
    return chosen


def make_room(store: BlockStore, needed_bytes: int, *, keep: Collection[str] = ()) -> Room:
    """Evict and compact until a put of `needed_bytes` has room. Raises StoreError as `delete` and `compact`."""
    evicted = Removed()
    for dead_share in (_WASTEFUL_SHARE, 0.0):
        if store.free_bytes >= needed_bytes:
            break
        store.flush()
        missing = needed_bytes + store.missing_bytes - store.stats().dead_bytes
        if missing > 0:
            with store.database.reading() as c:
                keys = coldest(index.usage(c), missing, keep=keep)
            gone = store.delete(keys, is_eviction=True)
            evicted = evicted + gone
        if store.free_bytes < needed_bytes:
            compact(store, dead_share=dead_share)
    return Room(store.free_bytes >= needed_bytes, evicted)
