"""The mover: one thread of low priority that owns the SSD tier and moves blocks between staging, RAM and disk.

The token path hands it work and goes on; nothing here is ever waited for by a step. Reads of blocks that a request waits
for go before everything else, then what makes staging buffers free, then writes to disk in small batches.

Keeps invariant 7 (the RAM tier's budget is reserved before a copy) and, with `Catalogue`, that a failed write is never
visible: a block counts as stored only after the store said so.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from akashic_daemon.errors import AkashicError, StoreError
from akashic_daemon.store.blocks.record import Found, Miss, MissReason
from akashic_daemon.store.blocks.slices import is_full
from akashic_daemon.tiers.arena import Arena
from akashic_daemon.tiers.block import Block, to_label
from akashic_daemon.tiers.catalogue import Catalogue
from akashic_daemon.tiers.costs import Costs
from akashic_daemon.tiers.jobs import JobThread, Priority
from akashic_daemon.tiers.moves import Moves
from akashic_daemon.tiers.sink import Sink
from akashic_daemon.tiers.ssd import Outgoing, SsdTier
from akashic_daemon.tiers.staging import Buffer, Staging

logger = logging.getLogger("akashic.tiers")


@dataclass(frozen=True, slots=True)
class _Write:
    """A block on its way to disk: its payload stands in the RAM tier, or in a buffer of its own."""

    block: Block
    group: str
    buffer: Buffer | None = None
    is_preceded: bool = False
    """Whether what it goes on from was looked for already: what the disk refuses isn't tried again for each that follows."""


class Mover(JobThread):
    """Serves one catalogue at a time. `open_ssd` makes the SSD tier on the mover's thread; None without one."""

    def __init__(self, open_ssd: Callable[[], SsdTier] | None) -> None:
        super().__init__("akashic-mover")
        self._open_ssd = open_ssd
        self._ssd: SsdTier | None = None
        self._to_write: deque[_Write] = deque()
        self._queued: set[Block] = set()
        self._is_writing = False
        self.waits_for_engine = False
        """Whether it can go on only when the engine thread imports what was read."""
        self.problem: AkashicError | None = None
        """Why there is no SSD tier although one was asked for."""
        self.moves = Moves()
        self.catalogue: Catalogue | None = None
        self.arena = Arena(0, 1)
        self.outgoing: Staging | None = None
        self.incoming: Staging | None = None
        self.costs: Costs | None = None

    @property
    def ssd(self) -> SsdTier | None:
        """The SSD tier; use it on the mover's thread only."""
        return self._ssd

    @property
    def waiting_writes(self) -> int:
        """Blocks that wait to be written to disk."""
        return len(self._to_write)

    # -- the thread --------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Write what waits, and close the store."""
        while self._to_write:
            self._guarded(self._write_batch)
        if self._ssd is not None:
            self._ssd.close()

    def _begin(self) -> None:
        """Open the SSD tier, or say why there is none."""
        if self._open_ssd is None:
            return
        try:
            self._ssd = self._open_ssd()
        except AkashicError as error:
            self.problem = error
            logger.error("going on without the SSD tier: %s", error)
        else:
            self._ssd.pause_with(self._serve_waiting)
        finally:
            if self._ssd is None and self.problem is None:  # a bug, which the thread's border logs
                self.problem = StoreError("opening the SSD tier: it failed by a bug", hint="see `akashic daemon logs`")

    def serve(self, catalogue: Catalogue, arena: Arena, outgoing: Staging, incoming: Staging, costs: Costs) -> None:
        """Go over to another model's blocks and take in what the disk has of them; call it with Priority.LAST."""
        self.flush_writes()
        self.leave()
        self.catalogue, self.arena, self.costs = catalogue, arena, costs
        self.outgoing, self.incoming = outgoing, incoming
        if self._ssd is not None:
            try:
                loaded = catalogue.load((s.key, s.label, s.size_bytes) for s in self._ssd.labels(catalogue.fingerprint))
            except AkashicError as error:  # the model can be served all the same
                self.problem = error
                logger.error("going on without the SSD tier: %s", error)
                self._ssd.close()
                self._ssd = None
                return
            if loaded.damaged or loaded.orphans:
                logger.warning(
                    "%d stored blocks have damaged labels, %d lead on from blocks that are gone: they will not be used",
                    len(loaded.damaged),
                    len(loaded.orphans),
                )

    def leave(self) -> None:
        """Let the blocks of a model go from RAM; nothing of it may be moving any more."""
        self._to_write.clear()
        self._queued.clear()
        self.arena = Arena(0, 1)
        self.catalogue = self.outgoing = self.incoming = None

    # -- out of the engine -------------------------------------------------------------------------------------

    def store(self, block: Block, buffer: Buffer, size_bytes: int, group: str, *, to_disk: bool) -> None:
        """Take an exported block out of `buffer` into the RAM tier, and to disk if it is worth it."""
        assert self.outgoing is not None
        block.is_moving = False
        keeps_buffer = False
        try:
            if not self.store_in_ram(block, buffer.view(size_bytes)) and to_disk and self._ssd is not None:
                # Until it is written it has no other copy, and must not be dropped for that.
                keeps_buffer = block.is_moving = True
            block.size_bytes = size_bytes
            block.join(group)
            self.moves.demoted_bytes += size_bytes
            self.moves.demoted_blocks += 1
            if to_disk and self._ssd is not None:
                self.write(block, group, buffer if keeps_buffer else None)
            elif block.slots is None:
                self.moves.lose("ram_full")
                if self.catalogue is not None:
                    self.catalogue.drop_empty(block)
        finally:
            if not keeps_buffer:
                self.outgoing.give_back(buffer)

    def store_in_ram(self, block: Block, payload: memoryview) -> bool:
        """Copy a block into the RAM tier; False when no room can be made."""
        if block.slots is not None:
            return True
        slots = self.arena.reserve(len(payload))
        if slots is None and self._make_ram_room(len(payload)):
            slots = self.arena.reserve(len(payload))
        if slots is None:
            return False
        self.arena.write(slots, payload)
        block.slots = slots
        return True

    def _make_ram_room(self, needed_bytes: int) -> bool:
        """Evict the longest unused blocks from RAM: those that the disk has, then those that it never will.

        Of the former, those that were read ahead go last: somebody waits for them.
        """
        assert self.catalogue is not None
        if needed_bytes > self.arena.budget_bytes:
            return False
        idle = self._idle_in_ram()
        idle.sort(key=lambda b: (not b.on_ssd, b.prefetched, b.used))
        target = max(needed_bytes, self.arena.budget_bytes // 32)
        for block in idle:
            if self.arena.free_bytes >= target:
                break
            self.drop_from_ram(block)
        return self.arena.free_bytes >= needed_bytes

    def _idle_in_ram(self) -> list[Block]:
        assert self.catalogue is not None
        return [b for b in self.catalogue.blocks() if b.slots is not None and not b.pins and b not in self._queued]

    def free_ram(self, block: Block) -> bool:
        """Free a block's RAM copy, for good; False when it has none or somebody reads it."""
        assert self.catalogue is not None
        slots = self.catalogue.take_slots(block)
        if slots is None:
            return False
        self.arena.free(slots)
        block.prefetched = False
        self.catalogue.drop_empty(block)
        return True

    def drop_from_ram(self, block: Block) -> None:
        """Evict a block's RAM copy."""
        assert self.catalogue is not None
        slots = self.catalogue.take_slots(block)
        if slots is None:
            return
        self.arena.free(slots)
        self.moves.ram_evicted_blocks += 1
        self.moves.ram_evicted_bytes += slots.size_bytes
        if block.prefetched:
            self.moves.prefetch_wasted_bytes += slots.size_bytes
            block.prefetched = False
        if not block.on_ssd:
            self.moves.lose("ram_full")
            self.catalogue.drop_empty(block)

    # -- to disk -----------------------------------------------------------------------------------------------

    def write(self, block: Block, group: str, buffer: Buffer | None = None) -> None:
        """Queue a block for the disk, after those of its ancestors that it lacks."""
        self._queue_above(block, group)
        self._queue_write(_Write(block, group, buffer))
        self._schedule_writes()

    def lacking_above(self, block: Block) -> list[Block]:
        """Return a block's ancestors that the disk has not and that don't wait to be written, the uppermost first."""
        lacking: list[Block] = []
        at = block.parent
        while at is not None and not at.on_ssd and not at.is_labelled and at not in self._queued:
            lacking.append(at)
            at = at.parent
        return lacking[::-1]

    def _queue_above(self, block: Block, group: str) -> None:
        for ancestor in self.lacking_above(block):
            self._queue_write(_Write(ancestor, group))

    def regroup_writes(self, old: str, new: str | None) -> None:
        """Give what waits to be written for a group to another: `new`, else one that has the block; without, drop it."""
        for write in [self._to_write.popleft() for _ in range(len(self._to_write))]:
            group = new or next(iter(write.block.groups), None)
            if write.group != old:
                self._to_write.append(write)
            elif group is not None:
                self._to_write.append(replace(write, group=group))
            else:
                self._queued.discard(write.block)
                self._give_back(write)

    def flush_writes(self) -> None:
        """Write everything that waits to be written."""
        while self._to_write and self._ssd is not None and self.catalogue is not None:
            self._write_batch()

    def gone_from_ssd(self, keys: Iterable[str], reason: str) -> None:
        """Follow what was removed from the disk."""
        for block in map(self.catalogue.get, keys) if self.catalogue is not None else ():
            if block is None or self.catalogue is None:
                continue
            if block.on_ssd and block.slots is None:
                self.moves.lose(reason)
            block.on_ssd = block.is_labelled = False
            self.catalogue.drop_empty(block)

    def _queue_write(self, write: _Write) -> None:
        if write.block in self._queued or write.block.on_ssd:
            self._give_back(write)
            return
        self._queued.add(write.block)
        self._to_write.append(write)

    def _give_back(self, write: _Write) -> None:
        """Give a write's buffer back, if it has one of its own."""
        if write.buffer is not None and self.outgoing is not None:
            write.block.is_moving = False
            self.outgoing.give_back(write.buffer)

    def _schedule_writes(self) -> None:
        if not self._is_writing and self._to_write:
            self._is_writing = True
            self.submit(Priority.WRITE, self._write_batch)

    def _write_batch(self) -> None:
        self._is_writing = False
        if self._ssd is None or self.catalogue is None:
            return
        batch = self._take_batch()
        outgoing = [self._outgoing(write) for write in batch]
        started_s = time.monotonic()
        written = self._ssd.write(outgoing)
        self.follow_evictions()
        stored = set(written.keys)
        for write, out in zip(batch, outgoing, strict=True):
            self._queued.discard(write.block)
            self._give_back(write)
            if write.block.key in stored:
                write.block.is_labelled = True
                write.block.on_ssd = write.block.on_ssd or len(out.payload) > 0
            elif not write.block.has_copy:
                self.moves.lose(str(written.refused))
                self.catalogue.drop_empty(write.block)
        self._join_other_groups(w for w in batch if w.block.key in stored)
        for write in batch:
            if write.block.key in stored:
                self._queue_above(write.block, write.group)  # an ancestor may have made the room for it
        if written.refused is None:
            logger.debug("wrote %d blocks in %.3f s", len(batch), time.monotonic() - started_s)
        self._schedule_writes()

    def _take_batch(self) -> list[_Write]:
        """Take what is written at once, each after ancestors that left the disk since it was queued."""
        batch: list[_Write] = []
        size_bytes = 0
        while self._to_write and not is_full(len(batch), size_bytes):
            write = self._to_write.popleft()
            above = [] if write.is_preceded else self.lacking_above(write.block)
            if above:  # in front of the queue, not into this batch: they may be a whole context
                self._queued.update(above)
                before = (_Write(block, write.group, is_preceded=True) for block in above)
                self._to_write.extendleft(reversed([*before, replace(write, is_preceded=True)]))
                continue
            batch.append(write)
            size_bytes += write.block.size_bytes
        return batch

    def _join_other_groups(self, writes: Iterable[_Write]) -> None:
        """Let sessions have blocks that they found before those were on the disk: else one's removal would orphan theirs."""
        assert self._ssd is not None
        keys: dict[str, list[str]] = {}
        for write in writes:
            for group in write.block.groups:
                if group != write.group:
                    keys.setdefault(group, []).append(write.block.key)
        for group, found in keys.items():
            self._ssd.join(group, found)

    def _outgoing(self, write: _Write) -> Outgoing:
        block = write.block
        payload = memoryview(b"")
        if write.buffer is not None:
            payload = write.buffer.view(block.size_bytes)
        elif block.slots is not None:
            payload = self.arena.read(block.slots, memoryview(bytearray(block.slots.size_bytes)))
        assert self.catalogue is not None
        return Outgoing(block.key, to_label(block), write.group, block.first, self.catalogue.fingerprint, payload)

    def join(self, group: str, keys: Sequence[str]) -> None:
        """Let a session have a share in blocks that are stored."""
        for block in map(self.catalogue.get, keys) if self.catalogue is not None else ():
            if block is not None:
                block.join(group)
        if self._ssd is not None:
            self._ssd.join(group, keys)

    def follow_evictions(self) -> None:
        """Take note of what the disk evicted or put into quarantine."""
        if self._ssd is None or self.catalogue is None:
            return
        self.gone_from_ssd(self._ssd.evicted(), "ssd_full")

    # -- back --------------------------------------------------------------------------------------------------

    def fetch(self, blocks: Sequence[Block], sink: Sink) -> None:
        """Read blocks from disk, one buffer each, into `sink`, in the order in which they lie there."""
        incoming = self.incoming
        by_key = {block.key: block for block in blocks}
        if self._ssd is None or incoming is None:
            self.gone_from_ssd(by_key, "unreadable")
            _report_missing(by_key.values(), sink)
            return
        taken: dict[str, Buffer] = {}
        waited_s = 0.0

        def into(key: str, size_bytes: int) -> memoryview:
            nonlocal waited_s
            asked_s = time.monotonic()
            buffer = self._wait_for(incoming, sink) if size_bytes <= incoming.size_bytes else None
            waited_s += time.monotonic() - asked_s
            if buffer is None:
                return memoryview(bytearray(size_bytes))  # nobody wants it any more
            taken[key] = buffer
            return buffer.view(size_bytes)

        started_s, read_bytes = time.monotonic(), 0
        try:
            for found in self._ssd.read(list(by_key), into):
                if isinstance(found, Miss):
                    self._follow_miss(found)
                elif (key := found.entry.key) in taken:
                    block = by_key[key]
                    read_bytes += len(found.payload)
                    self.moves.promoted_ssd_blocks += 1
                    self.store_in_ram(block, found.payload)
                    if sink.offer((block, taken[key], len(found.payload))):
                        del by_key[key], taken[key]
                elif not sink.closed:  # it was stored larger than what is computed now
                    self.gone_from_ssd([key], "unreadable")
                for key in list(taken):
                    incoming.give_back(taken.pop(key))
        finally:  # also after a bug: who waits for them computes them then
            for buffer in taken.values():
                incoming.give_back(buffer)
            _report_missing(by_key.values(), sink)
        self.moves.promoted_ssd_bytes += read_bytes
        if self.costs is not None and read_bytes:
            self.costs.observe_ssd_read(read_bytes, time.monotonic() - started_s - waited_s)
        self.follow_evictions()

    def _wait_for(self, pool: Staging, sink: Sink) -> Buffer | None:
        """Return a buffer as soon as the engine thread gives one back; None when the sink is closed.

        What the engine thread exports is stored meanwhile: it may be waiting for just that.
        """
        try:
            while not sink.closed:
                buffer = pool.take()
                if buffer is not None:
                    return buffer
                if not self._store_next():
                    self.waits_for_engine = True
                    time.sleep(0.0005)
            return None
        finally:
            self.waits_for_engine = False

    def prefetch(self, blocks: Iterable[Block]) -> None:
        """Read blocks from disk into the RAM tier, in the order given, as far as it has room for them.

        Room is what is free, and what the disk has too and was used longer ago. Nothing goes for it of which only RAM has a
        copy, nor what was itself read ahead; and what has no room isn't read.
        """
        if self._ssd is None or self.catalogue is None:
            return
        wanted = {b.key: b for b in self._with_room([b for b in blocks if b.slots is None and b.on_ssd])}
        scratch = bytearray(max((b.size_bytes for b in wanted.values()), default=0))
        for found in self._ssd.read(wanted, lambda _key, size: memoryview(scratch)[:size]):
            block = wanted[found.entry.key if isinstance(found, Found) else found.key]
            if isinstance(found, Found):
                self.moves.promoted_ssd_bytes += len(found.payload)
                self.moves.promoted_ssd_blocks += 1
                self.moves.prefetched_bytes += len(found.payload)
                block.prefetched = self.store_in_ram(block, found.payload)
                if not block.prefetched:
                    self.moves.prefetch_wasted_bytes += len(found.payload)
            else:
                self._follow_miss(found)
        self.follow_evictions()

    def _with_room(self, wanted: Sequence[Block]) -> list[Block]:
        """Return the first of the blocks that can be put into RAM, after making room for them."""
        oldest = min((block.used for block in wanted), default=0)
        spare = [b for b in self._idle_in_ram() if b.on_ssd and not b.prefetched and b.used < oldest]
        spare.sort(key=lambda b: b.used, reverse=True)
        room_bytes = self.arena.free_bytes + sum(map(self._slot_bytes, spare))
        fit: list[Block] = []
        needed_bytes = 0
        for block in wanted:
            needed_bytes += self._slot_bytes(block)
            if needed_bytes > room_bytes:
                break
            while self.arena.free_bytes < needed_bytes and spare:
                self.drop_from_ram(spare.pop())
            if self.arena.free_bytes < needed_bytes:
                break  # a request has begun to read what was spare
            fit.append(block)
        return fit

    def _slot_bytes(self, block: Block) -> int:
        return self.arena.slots_needed(block.size_bytes) * self.arena.slot_bytes

    def _follow_miss(self, miss: Miss) -> None:
        """Believe no more that the disk has a block which it can't give; what it can't give just now is asked for again."""
        if miss.reason is not MissReason.UNREADABLE:
            self.gone_from_ssd([miss.key], "unreadable")


def _report_missing(blocks: Iterable[Block], sink: Sink) -> None:
    for block in blocks:
        sink.offer((block, None, 0))
