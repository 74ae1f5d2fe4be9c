"""Which records go when the budget is full: tails of the groups that nobody used for longest.

A tail without its beginning can't be used, a beginning without its tail can: so a group goes from its end. A record of
several groups goes with the one that was used last. Extents are then rewritten, the deadest first, until there is room.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from akashic_daemon.store.blocks import index
from akashic_daemon.store.blocks.compaction import compact
from akashic_daemon.store.blocks.index import Usage
from akashic_daemon.store.blocks.record import Removed
from akashic_daemon.store.blocks.slices import Pace
from akashic_daemon.store.blocks.store import BlockStore

_WASTEFUL_SHARE = 0.5
"""An extent with less dead than this is rewritten only when nothing else gives the room: a freed byte would cost more
than a written one, and evicting a little more costs none. Sessions that take turns in a full store wrote 4.5 bytes for
each that was stored while every dead byte was taken back first, and 1.6 with this; at 0.25 it was 2.5."""
_EVICTED_AT_MOST = 2
"""So many times what is missing may go before extents with little dead are rewritten after all."""


@dataclass(frozen=True, slots=True)
class Room:
    """What making room did. `is_enough` is false when what may go doesn't suffice, or readers hold its files."""

    is_enough: bool
    evicted: Removed


def _no_pause() -> None:
    pass


def coldest(
    usage: Iterable[Usage],
    needed_bytes: int,
    *,
    keep: Collection[str] = (),
    pause: Callable[[], None] = _no_pause,
) -> list[str]:
    """Return the keys to evict, in order, until they take `needed_bytes`; never a record of a group in `keep`.

    `pause` is called in the middle of it where there are many.
    """
    rows = list(usage)
    used_at_s: dict[str, float] = {}
    kept: set[str] = set()
    pace = Pace(pause)
    for row in rows:
        pace.did()
        used_at_s[row.group] = max(used_at_s.get(row.group, row.used_at_s), row.used_at_s)
        if row.group in keep:
            kept.add(row.key)
    home: dict[str, Usage] = {}
    for row in rows:
        if row.key not in kept:
            home[row.key] = max(home.get(row.key, row), row, key=lambda r: (used_at_s[r.group], r.group, r.sequence))
        pace.did()
    of_group: dict[str, list[Usage]] = {}
    for row in home.values():
        pace.did()
        of_group.setdefault(row.group, []).append(row)
    chosen: list[str] = []
    for group in sorted(of_group, key=lambda g: (used_at_s[g], g)):
        pace.did(records=len(of_group[group]))
        for row in sorted(of_group[group], key=lambda r: -r.sequence):
            if needed_bytes <= 0:
                return chosen
            chosen.append(row.key)
            needed_bytes -= row.stored_bytes
    return chosen


def make_room(store: BlockStore, needed_bytes: int, *, keep: Collection[str] = ()) -> Room:
    """Evict and compact until a put of `needed_bytes` has room. Raises StoreError as `delete` and `compact`."""
    evicted = Removed()
    if store.free_bytes >= needed_bytes:
        return Room(True, evicted)
    store.flush()
    most_bytes = _EVICTED_AT_MOST * (needed_bytes + store.missing_bytes)
    for wasteful_share in (_WASTEFUL_SHARE, 0.0):
        while (missing := needed_bytes + store.missing_bytes - _dead_bytes(store, wasteful_share)) > 0:
            if wasteful_share and evicted.stored_bytes >= most_bytes:
                break
            keys = coldest(store.in_pages(index.usage), missing, keep=keep, pause=store.pause)
            if not keys:
                break
            evicted += store.delete_in_slices(keys, is_eviction=True)
        if store.free_bytes < needed_bytes:
            compact(store, dead_share=wasteful_share, until_free_bytes=needed_bytes, must_read=False)
        if store.free_bytes >= needed_bytes:
            return Room(True, evicted)
    compact(store, must_read=False)  # new headers took what was missing, or nothing more may go
    return Room(store.free_bytes >= needed_bytes, evicted)


def _dead_bytes(store: BlockStore, share: float) -> int:
    """Return the dead bytes of the extents of which more than a share is dead, and which can be rewritten."""
    with store.database.reading() as c:
        live = index.live_bytes(c)
    dead = ((e.end_bytes - live[e.number], e.end_bytes) for e in store.extents if not e.is_stuck)
    return sum(dead_bytes for dead_bytes, end_bytes in dead if dead_bytes > share * end_bytes)
