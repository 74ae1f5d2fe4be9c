"""What a removal would take, told before anything is removed."""

from __future__ import annotations

from collections.abc import Collection

from akashic_daemon.store.blocks import index
from akashic_daemon.store.blocks.eviction import coldest
from akashic_daemon.store.blocks.record import Removed
from akashic_daemon.store.blocks.store import BlockStore


def would_go(store: BlockStore, chosen: Collection[str], to_bytes: int | None) -> Removed:
    """Return what would go: the chosen records, then the coldest until the store takes no more than `to_bytes`.

    Changes nothing. Raises StoreError when the index can't be read.
    """
    usage = list(store.in_pages(index.usage))
    gone = set(chosen)
    size_bytes = {row.key: row.stored_bytes for row in usage}
    if to_bytes is not None:
        kept = [row for row in usage if row.key not in gone]
        left_bytes = sum(size for key, size in size_bytes.items() if key not in gone)
        gone |= set(coldest(kept, left_bytes - to_bytes, pause=store.pause))
    keys = tuple(key for key in size_bytes if key in gone)
    return Removed(len(keys), sum(size_bytes[key] for key in keys), keys)
