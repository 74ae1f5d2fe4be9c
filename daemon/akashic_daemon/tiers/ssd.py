"""The SSD tier: KV blocks in the block store, under a byte budget and a daily write budget.

Full, worn, unwritable or damaged, it refuses with a reason and goes on with what it has; only opening it, and what a
user asks for (prune, verify), raises. A block's label is opaque here: it travels as the record's token ids. Use it on
the thread that opened it; only what `read` gives may be iterated elsewhere.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from akashic_daemon.errors import AkashicError, Conflict, StoreError, StoreTooNew, StoreUnwritable
from akashic_daemon.store.blocks.check import Finding, check
from akashic_daemon.store.blocks.compaction import compact
from akashic_daemon.store.blocks.eviction import make_room
from akashic_daemon.store.blocks.files import FileOps
from akashic_daemon.store.blocks.opening import EXTENT_BYTES, open_block_store
from akashic_daemon.store.blocks.planning import would_go
from akashic_daemon.store.blocks.record import (
    Bytes,
    Found,
    Kind,
    Miss,
    MissReason,
    Put,
    Record,
    RefusalReason,
    Removed,
)
from akashic_daemon.store.blocks.store import BlockStore
from akashic_daemon.tiers.wear import DailyWrites
from akashic_daemon.types import Clock

logger = logging.getLogger("akashic.tiers")
_ROOM_SHARE = 32
"""Where room must be made, this part of the budget is made free at once, so that not every write has to; at most an
extent, for reads wait meanwhile."""


class Refused(StrEnum):
    """Why blocks weren't written."""

    BUDGET = "budget"
    DAILY_BUDGET = "daily_budget"
    UNWRITABLE = "unwritable"


@dataclass(frozen=True, slots=True)
class Stored:
    """A block that the tier has."""

    key: str
    label: bytes
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A block to write: at `sequence` in the group whose blocks are read together. The payload may be empty."""

    key: str
    label: bytes
    group: str
    sequence: int
    fingerprint: str
    payload: Bytes


@dataclass(frozen=True, slots=True)
class Written:
    """What a write did: how many are new, their bytes, all keys that are in the tier now, and why others aren't."""

    stored: int = 0
    stored_bytes: int = 0
    keys: tuple[str, ...] = ()
    refused: Refused | None = None


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a prune removed, and what the disk got back. `left` extents still hold dead bytes: they are being read."""

    removed: Removed
    freed_bytes: int
    left: int


@dataclass(frozen=True, slots=True)
class SsdStats:
    """What the tier holds, and has done since its store was made; refusals since the daemon's start.

    index_bytes: of the index, labels among them, which the budget doesn't count. never_read_bytes: of what is stored.
    evictions: records by reason: budget, damaged, removed (by the user).
    """

    budget_bytes: int
    used_bytes: int
    dead_bytes: int = 0
    index_bytes: int = 0
    records: int = 0
    written_bytes: int = 0
    written_records: int = 0
    compacted_bytes: int = 0
    read_back_bytes: int = 0
    read_back_records: int = 0
    never_read_bytes: int = 0
    evicted_unread_bytes: int = 0
    evictions: dict[str, int] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)
    day_written_bytes: int = 0
    day_budget_bytes: int = 0
    unavailable: AkashicError | None = None


class SsdTier:
    """An open tier; `open_ssd` makes one."""

    def __init__(self, store: BlockStore, daily_write_bytes: int, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._daily = DailyWrites(store, daily_write_bytes, clock)
        self._refusals: Counter[Refused] = Counter()
        self._write_error: AkashicError | None = None
        self._read_error: AkashicError | None = None
        self._is_well = True
        self._last_stats: SsdStats | None = None

    @property
    def budget_bytes(self) -> int:
        """The most that files and payloads may take."""
        return self._store.budget_bytes

    @property
    def unavailable(self) -> AkashicError | None:
        """Why the disk didn't take a block lately, or didn't give one; None again after it did."""
        return self._write_error or self._read_error

    def pause_with(self, pause: Callable[[], None]) -> None:
        """Have `pause` called in the middle of long work; it may `read`, and do nothing else here."""
        self._store.pause = pause

    # -- writing -----------------------------------------------------------------------------------------------

    def write(self, blocks: Sequence[Outgoing], *, keep: Collection[str] = ()) -> Written:
        """Store blocks, as many from the first on as have room; the result says why not all.

        Room is made by evicting tails of the groups that were unused for longest: never of those in `keep`, nor of
        those that are written here. Blocks that are stored already cost nothing and join the group; one that was stored
        as a label only gets its KV.
        """
        try:
            written = self._write(blocks, keep)
        except AkashicError as error:
            self._write_error = error
            written = Written(refused=Refused.UNWRITABLE)
        if written.refused is not None:
            self._refusals[written.refused] += len({b.key for b in blocks}) - len(written.keys)
        self._say()
        return written

    def _write(self, blocks: Sequence[Outgoing], keep: Collection[str]) -> Written:
        sizes = self._store.known(b.key for b in blocks)
        known = {b.key for b in blocks if sizes.get(b.key, -1) >= min(1, len(b.payload))}
        fitting = _beginning(blocks, known, self._daily.left_bytes())
        refused = Refused.DAILY_BUDGET if len(fitting) < len(blocks) else None
        put = self._put(fitting)
        if put.refusal is not None and put.refusal.reason is RefusalReason.BUDGET:
            self._make_room(put.refusal.needed_bytes, {*keep, *(b.group for b in blocks)})
            put = self._put(fitting)
        if put.refusal is not None and put.refusal.reason is RefusalReason.BUDGET:
            refused = Refused.BUDGET
            while fitting and put.refusal is not None and put.refusal.reason is RefusalReason.BUDGET:
                fitting = _beginning(fitting, known, self._store.free_bytes, len(fitting) - 1)
                put = self._put(fitting)
        if put.refusal is not None:
            self._write_error = self._store.unavailable
            return Written(refused=Refused.UNWRITABLE)
        if put.stored:  # the index alone may still have room where payloads have none
            self._write_error = None
        return Written(put.stored, put.stored_bytes, tuple(dict.fromkeys(b.key for b in fitting)), refused)

    def _put(self, blocks: Sequence[Outgoing]) -> Put:
        if not blocks:
            return Put()
        return self._store.put(
            [Record(b.key, Kind.KV, b.group, b.sequence, b.fingerprint, b.payload, b.label) for b in blocks]
        )

    def _make_room(self, needed_bytes: int, keep: Collection[str]) -> None:
        """Make room where it can be made; whether it was enough the next put tells."""
        # Conflict: another process reads the index, so that its log wasn't cut; the room itself is made.
        with suppress(Conflict):
            at_once_bytes = min(self.budget_bytes // _ROOM_SHARE, EXTENT_BYTES)
            make_room(self._store, max(needed_bytes, at_once_bytes), keep=keep)

    def shrink_to_budget(self) -> None:
        """Evict what is stored beyond the budget, which may have been lowered. Never raises."""
        if self._store.missing_bytes <= 0:
            return
        try:
            self._make_room(1, ())
        except AkashicError as error:
            self._write_error = error
        self._say()

    def join(self, group: str, keys: Iterable[str]) -> None:
        """Let a group have blocks that another stored: they stay until the last of their groups is forgotten."""
        try:
            self._store.join(group, keys)
        except AkashicError as error:
            self._write_error = error
        self._say()

    # -- reading -----------------------------------------------------------------------------------------------

    def labels(self, fingerprint: str, *, as_they_are: bool = False) -> Iterator[Stored]:
        """Give every block of a model, the oldest first; as_they_are: damaged ones too, unnoted. Raises StoreError."""
        for entry in self._store.entries_of(Kind.KV, fingerprint, as_they_are=as_they_are):
            yield Stored(entry.key, entry.token_ids or b"", entry.size_bytes)

    def read(
        self, keys: Iterable[str], into: Callable[[str, int], memoryview], *, sweep_bytes: int = 0
    ) -> Iterator[Found | Miss]:
        """Read blocks into the buffers that `into` gives for a key and its size, each once, in the order of the disk.

        Each block is given before `into` is asked for the next one's buffer, so that they may share one. With
        sweep_bytes neighbours are read with one call up to that size, and need a buffer each. Every byte of what is
        Found was verified; what isn't what was written is a Miss and goes into quarantine. Never raises.
        """
        wanted = dict.fromkeys(keys)
        try:
            reads = self._store.read(
                wanted, lambda entry: into(entry.key, entry.size_bytes), by_place=True, sweep_bytes=sweep_bytes
            )
        except AkashicError as error:
            self._read_error = error
            self._say()
            yield from (Miss(key, MissReason.UNREADABLE, str(error)) for key in wanted)
            return
        is_damaged = False
        with reads:
            for found in reads:
                is_damaged |= self._noted(found)
                wanted.pop(found.entry.key if isinstance(found, Found) else found.key, None)
                yield found
        yield from (Miss(key, MissReason.ABSENT, "it isn't stored") for key in wanted)
        if is_damaged and not self._store.try_flush():
            self._write_error = self._store.unavailable
        self._say()

    def _noted(self, found: Found | Miss) -> bool:
        """Remember whether the disk could be read; return whether a block is damaged."""
        if isinstance(found, Found):
            self._read_error = None
        elif found.reason is MissReason.UNREADABLE:
            self._read_error = StoreError(f"reading the block {found.key}: {found.detail}", hint="check the disk")
        elif found.reason is MissReason.DAMAGED:
            logger.warning("the block %s on disk is damaged (%s): it is computed again", found.key, found.detail)
            return True
        return False

    # -- upkeep ------------------------------------------------------------------------------------------------

    def evicted(self) -> list[str]:
        """Return the keys that eviction and quarantine took since the last call."""
        return self._store.take_lost()

    def forget_group(self, group: str) -> Removed:
        """Remove the blocks that no other group has. Raises StoreError. Their bytes go with the next `prune`."""
        return self._store.delete_group(group)

    def rename_group(self, old: str, new: str) -> None:
        """Let a group's blocks be another's. Raises StoreError; the old group has them still then."""
        self._store.join(new, [entry.key for entry in self._store.entries(old)])
        self._store.delete_group(old)

    def prune(
        self,
        *,
        everything: bool = False,
        unused_for_s: float | None = None,
        other_than: str | None = None,
        to_bytes: int | None = None,
    ) -> Pruned:
        """Remove blocks, and give back to the disk what dead ones took. Raises StoreError.

        unused_for_s: those not used for so long. other_than: those of other models than this fingerprint. to_bytes: the
        coldest, until the tier takes no more than that; these are in `evicted` as well.
        """
        store = self._store
        used_bytes = store.bytes_used
        removed = Removed()
        if everything or unused_for_s is not None or other_than is not None:
            removed = store.delete_in_slices(self._chosen(everything, unused_for_s, other_than))
        if to_bytes is not None:
            removed += make_room(store, max(0, store.bytes_used - to_bytes - store.missing_bytes)).evicted
        compacted = compact(store)
        left = len(compacted.held_by_readers) + len(compacted.left)
        return Pruned(removed, used_bytes - store.bytes_used, left)

    def would_prune(
        self,
        *,
        everything: bool = False,
        unused_for_s: float | None = None,
        other_than: str | None = None,
        to_bytes: int | None = None,
    ) -> Removed:
        """Return what `prune` would remove, and change nothing. Raises StoreError."""
        chosen: Sequence[str] = ()
        if everything or unused_for_s is not None or other_than is not None:
            chosen = self._chosen(everything, unused_for_s, other_than)
        return would_go(self._store, chosen, to_bytes)

    def _chosen(self, everything: bool, unused_for_s: float | None, other_than: str | None) -> list[str]:
        before_s = None if everything or unused_for_s is None else self._clock.now_s() - unused_for_s
        return self._store.select(Kind.KV, used_before_s=before_s, other_than=None if everything else other_than)

    def verify(self, *, fix: bool = False) -> list[Finding]:
        """Return everything that is wrong with the store, both ways; mend it where asked. Raises StoreError."""
        return check(self._store, fix=fix)

    def fingerprints(self) -> list[str]:
        """Return the models of which blocks are stored. Raises StoreError."""
        return self._store.fingerprints(Kind.KV)

    def set_aside(self, wrong: Mapping[str, str]) -> None:
        """Move blocks into quarantine, by key with the reason; they are in `evicted` too. Raises StoreError."""
        self._store.set_aside(wrong)

    def stats(self) -> SsdStats:
        """Return the figures; the last known ones, with `unavailable`, while the index can't be read."""
        try:
            found = self._store.stats()
            day_written_bytes = self._daily.written_bytes()
        except AkashicError as error:
            self._read_error = error
            last = self._last_stats or SsdStats(self.budget_bytes, self._store.bytes_used)
            return replace(last, unavailable=error)
        count = found.counters.get
        self._last_stats = SsdStats(
            budget_bytes=self.budget_bytes,
            used_bytes=found.bytes_used,
            dead_bytes=found.dead_bytes,
            index_bytes=found.index_bytes,
            records=found.records,
            written_bytes=count("written_bytes", 0),
            written_records=count("written_records", 0),
            compacted_bytes=count("compacted_bytes", 0),
            read_back_bytes=count("read_bytes", 0),
            read_back_records=count("read_records", 0),
            never_read_bytes=found.never_read_bytes,
            evicted_unread_bytes=count("evicted_unread_bytes", 0),
            evictions={
                "budget": count("evicted_records", 0),
                "damaged": count("quarantined_records", 0),
                "removed": count("deleted_records", 0),
            },
            refusals={reason.value: self._refusals[reason] for reason in Refused},
            day_written_bytes=day_written_bytes,
            day_budget_bytes=self._daily.budget_bytes,
            unavailable=self.unavailable,
        )
        return self._last_stats

    def close(self) -> None:
        """Write what reading found out, and let another process have the store. A second call does nothing."""
        self._store.close()

    def _say(self) -> None:
        """Log once when the disk stops working, and once when it works again."""
        error = self.unavailable
        if (error is None) == self._is_well:
            return
        self._is_well = error is None
        if error is None:
            logger.info("the SSD tier works again")
        else:
            logger.warning("the SSD tier doesn't work now, what it has not yet stored stays in memory: %s", error)


def open_ssd(
    store_dir: Path, budget_bytes: int, daily_write_bytes: int, clock: Clock, files: FileOps | None = None
) -> SsdTier:
    """Open or make the tier in `store_dir`; what is stored beyond the budget goes at once.

    Raises Conflict while another process has it, StoreTooNew, StoreUnwritable when the disk refuses, StoreError when it
    is damaged; it is left as it is then. `tier_problem` puts these into words.
    """
    assert budget_bytes > 0, "without a budget there is no tier"
    store = open_block_store(store_dir, budget_bytes=budget_bytes, clock=clock, files=files)
    try:
        tier = SsdTier(store, daily_write_bytes, clock)
        tier.shrink_to_budget()
    except BaseException:
        store.close()
        raise
    return tier


def tier_problem(error: AkashicError) -> str:
    """Say in one sentence, for `status`, why there is no SSD tier and what that means."""
    why = {
        StoreTooNew: "its store was written by a newer akashic",
        StoreUnwritable: "its disk can't be written",
        Conflict: "another process uses its store",
        StoreError: "its store can't be read",
    }.get(type(error), "it can't be opened")
    return f"The SSD tier is off because {why}, so nothing computed survives a restart: {error}"


def _beginning(
    blocks: Sequence[Outgoing], known: Collection[str], limit_bytes: int, most: int | None = None
) -> Sequence[Outgoing]:
    """Return the first blocks, as many as have room: what is known takes none. A tail is of no use without them."""
    for count, block in enumerate(blocks[:most]):
        if block.key not in known:
            limit_bytes -= len(block.payload)
        if limit_bytes < 0:
            return blocks[:count]
    return blocks[:most]
