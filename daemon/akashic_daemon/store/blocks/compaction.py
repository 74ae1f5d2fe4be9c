"""Compaction: live records of stale extents are written anew, regrouped, and the old extents go.

Out of place: the new extents are on the disk before one transaction lets the index name them instead of the old ones,
so a crash leaves the old layout or the new one. A step takes as many extents as the budget has room for, and moves their
records slice by slice: between slices, each of them committed, `BlockStore.pause` lets others read. What isn't what was
written is not copied but quarantined; what can't be read just now stays where it is, for that is no proof of damage.
Afterwards nothing that was deleted is left in any file, unless a reader still holds an old extent or a part of one can't
be read: the result says which.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from akashic_daemon.errors import StoreUnwritable
from akashic_daemon.store.blocks import index
from akashic_daemon.store.blocks.extents import Batch, Extent
from akashic_daemon.store.blocks.files import read_all
from akashic_daemon.store.blocks.index import Lying, Row
from akashic_daemon.store.blocks.layout import FILE_HEADER_BYTES, RECORD_HEADER_BYTES
from akashic_daemon.store.blocks.reading import damage
from akashic_daemon.store.blocks.record import Compacted
from akashic_daemon.store.blocks.slices import sliced
from akashic_daemon.store.blocks.store import BlockStore

logger = logging.getLogger("akashic.store")


@dataclass(slots=True)
class _Moved:
    """Where the records of a step lie now, those that weren't what was written, and extents that couldn't be read."""

    places: dict[int, tuple[int, int]] = field(default_factory=dict)
    damaged: dict[int, str] = field(default_factory=dict)
    unread: dict[int, str] = field(default_factory=dict)
    bytes: int = 0


def compact(
    store: BlockStore,
    *,
    dead_share: float = 0.0,
    also: Collection[int] = (),
    until_free_bytes: int | None = None,
    layout: Sequence[Sequence[str]] = (),
    must_read: bool = True,
) -> Compacted:
    """Rewrite every extent of which more than `dead_share` is dead, and those in `also`.

    until_free_bytes: no more of them, the deadest first, than give so much room. layout: keys that are to lie in one
    extent, in this order, as far as they are rewritten and fit it; all others lie by group. must_read: raise, when all
    else is done, if something couldn't be read; without, its extent is in `left`, and isn't tried for room again. Raises
    StoreError; all records stand then.

    With the default nothing deleted is left, and the index and its log are wiped too (Conflict while another process
    reads them).
    """
    store.flush()
    used_before, count_before = store.bytes_used, len(store.extents)
    with store.database.transaction() as c:
        emptied = index.drop_empty(c)
    store.retire(emptied)
    with store.database.reading() as c:
        live = index.live_bytes(c)
    stale = {
        e.number: live[e.number]
        for e in store.extents
        if e.number in also or e.end_bytes - live[e.number] > dead_share * e.end_bytes
    }
    if until_free_bytes is not None:
        stale = _deadest(store, stale, until_free_bytes)
    total = Compacted(extents_before=count_before)
    unread: dict[int, str] = {}
    while stale:
        step = _fitting(store, stale)
        if not step:
            break
        moved = _step(store, step, layout)
        total = replace(
            total,
            moved_bytes=total.moved_bytes + moved.bytes,
            quarantined=total.quarantined + len(moved.damaged),
        )
        unread |= moved.unread
        for number in step:
            del stale[number]
    store.database.shrink(store.pause)
    if unread and must_read:
        raise StoreUnwritable(
            "compacting " + ", ".join(f"extent {number}: {why}" for number, why in sorted(unread.items())),
            hint="check the disk; all records still stand. When it can't be mended, stop the daemon and remove the folder "
            f"{store.extents.folder}: what it holds is made anew",
        )
    return replace(
        total,
        extents_after=len(store.extents),
        freed_bytes=used_before - store.bytes_used,
        left=(*stale, *sorted(unread)),
        held_by_readers=tuple(store.extents.sweep()),
    )


def _deadest(store: BlockStore, stale: dict[int, int], until_free_bytes: int) -> dict[int, int]:
    """Return as many of the stale extents as give the room: those first where a freed byte costs least to rewrite."""
    end_bytes = {e.number: e.end_bytes for e in store.extents if not e.is_stuck}
    missing = until_free_bytes + store.missing_bytes
    chosen: dict[int, int] = {}
    for number in sorted(stale.keys() & end_bytes.keys(), key=lambda n: stale[n] / end_bytes[n]):
        if missing <= 0:
            break
        chosen[number] = stale[number]
        missing -= end_bytes[number] - stale[number]
    return chosen


def _fitting(store: BlockStore, stale: dict[int, int]) -> list[int]:
    """Return the stale extents whose live records have room beside the old ones: as many as can be, in their order."""
    room = store.budget_bytes - store.bytes_used
    half_bytes = max(1, (store.extent_bytes - FILE_HEADER_BYTES) // 2)
    chosen: list[int] = []
    for number, live_bytes in stale.items():
        # Two new extents in a row hold more than one could: so many there can be, each with its header.
        needed = live_bytes + FILE_HEADER_BYTES * (1 + live_bytes // half_bytes)
        if needed <= room:
            chosen.append(number)
            room -= needed
    if not chosen and store.bytes_used > store.budget_bytes:
        # The budget was lowered below what is stored: only by going on, extent by extent, does it come to hold again.
        return [min(stale, key=lambda number: stale[number])]
    return chosen


def _step(store: BlockStore, numbers: list[int], layout: Sequence[Sequence[str]]) -> _Moved:
    """Move what lives in some extents, and let these go; one of which something can't be read stays, with that."""
    with store.database.reading() as c:
        rows, first = _laid_out(index.in_extents(c, numbers), layout)
    total = _Moved()
    target: Extent | None = None
    for part in sliced(rows, lambda row: row.stored_bytes):
        store.pause()
        with store.database.reading() as c:  # what was read in the pause may have been found damaged, and be gone
            found = [index.by_id(c, row.id) for row in part]
            left = [row for row in found if row is not None and row.extent in numbers]
        moved, target = _move(store, left, target, first)
        total.bytes += moved.bytes
        total.damaged |= moved.damaged
        total.unread |= moved.unread
    emptied = [number for number in numbers if number not in total.unread]
    with store.database.transaction() as c:
        index.drop(c, emptied)
    store.retire(emptied)
    _say_stuck(store, total.unread)
    return total


def _laid_out(rows: list[Lying], layout: Sequence[Sequence[str]]) -> tuple[list[Lying], frozenset[int]]:
    """Return the rows in the order in which they are to lie, and the ids of those that begin an extent of their own."""
    of_key = {row.key: row for row in rows}
    together = [[of_key.pop(key) for key in block if key in of_key] for block in layout]
    runs = [run for run in (*together, list(of_key.values())) if run]
    return [row for run in runs for row in run], frozenset(run[0].id for run in runs)


def _move(
    store: BlockStore, rows: list[Row], target: Extent | None, first: Collection[int]
) -> tuple[_Moved, Extent | None]:
    """Move records behind what was moved to `target` before, or to new extents; return what became of them, and the last."""
    batch = Batch(store.extents)
    try:
        moved, target = _copy(store, rows, batch, target, first)
        batch.sync()
        with store.database.transaction() as c:
            for extent, tail in batch.tails.items():
                index.set_end(c, extent.number, tail)
            for row_id, place in moved.places.items():
                index.move(c, row_id, *place)
            for row_id, why in moved.damaged.items():
                index.quarantine(c, row_id, why, store.clock.now_s())
            index.count_up(c, "compacted_bytes", moved.bytes)
            index.count_up(c, "quarantined_records", len(moved.damaged))
            lost = [row.entry.key for row in rows if row.id in moved.damaged]
    except BaseException:
        batch.undo()
        raise
    batch.keep()
    store.lose(lost)
    return moved, target


def _copy(
    store: BlockStore, rows: list[Row], batch: Batch, target: Extent | None, first: Collection[int]
) -> tuple[_Moved, Extent | None]:
    moved = _Moved()
    for row in rows:
        assert row.extent is not None
        try:
            whole = _read(store, row, row.extent)
        except OSError as error:  # no proof of damage: nothing is given up for it
            moved.unread[row.extent] = error.strerror or str(error)
            continue
        if isinstance(whole, str):
            moved.damaged[row.id] = whole
            continue
        if target is None or row.id in first or batch.tail(target) + len(whole) > store.extent_bytes:
            target = batch.new_extent()
        header, payload = whole[:RECORD_HEADER_BYTES], whole[RECORD_HEADER_BYTES:]
        moved.places[row.id] = target.number, batch.append(target, bytes(header), payload)
        moved.bytes += len(whole)
    return moved, target


def _read(store: BlockStore, row: Row, number: int) -> memoryview | str:
    """Return a record of an extent with its header, or what is wrong with it. Raises OSError."""
    with store.extents.leased(number) as extent:
        end = row.offset_bytes + row.stored_bytes
        if row.entry.size_bytes < 0 or row.offset_bytes < FILE_HEADER_BYTES or end > extent.end_bytes:
            return "its size or place is wrong"
        whole = memoryview(bytearray(row.stored_bytes))
        if read_all(store.extents.files, extent.fd, [whole], row.offset_bytes) < len(whole):
            return "its payload is cut off"
    return damage(row, whole[:RECORD_HEADER_BYTES], whole[RECORD_HEADER_BYTES:]) or whole


def _say_stuck(store: BlockStore, unread: Mapping[int, str]) -> None:
    for extent in store.extents:
        if extent.number in unread and not extent.is_stuck:
            extent.is_stuck = True
            store.lanes.drop([extent])
            logger.warning(
                "%s can't be rewritten, for something in it can't be read (%s): what was deleted of it stays on the disk "
                "until it can; check the disk",
                extent.path, unread[extent.number],
            )  # fmt: skip
