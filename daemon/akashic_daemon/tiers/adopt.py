"""Blocks that come from another home, or go to one: on the mover's thread, one at a time or in small batches.

Budgets hold as they do for what is computed here: the disk first, then RAM, where the longest unused blocks of others go;
what has no room in either is counted and left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from akashic_daemon.errors import StoreError
from akashic_daemon.store.blocks.record import Found
from akashic_daemon.tiers.block import Block, block_key, from_label, stored_otherwise, to_label
from akashic_daemon.tiers.catalogue import Catalogue
from akashic_daemon.tiers.mover import Mover
from akashic_daemon.tiers.ssd import Outgoing, Refused


@dataclass(slots=True)
class Adopted:
    """What was taken of blocks that came. known: had a copy here already. left_out: blocks, by reason."""

    blocks: int = 0
    tokens: int = 0
    size_bytes: int = 0
    known: int = 0
    left_out: Counter[str] = field(default_factory=Counter)


def payload_of(mover: Mover, block: Block) -> bytes | None:
    """Return a block's KV, verified; None when it has no copy any more."""
    if block.slots is not None:
        return bytes(mover.arena.read(block.slots, memoryview(bytearray(block.slots.size_bytes))))
    if not block.on_ssd or mover.ssd is None:
        return None
    buffers: list[bytearray] = []

    def into(_key: str, size_bytes: int) -> memoryview:
        buffers.append(bytearray(size_bytes))
        return memoryview(buffers[-1])

    for found in mover.ssd.read([block.key], into):
        if isinstance(found, Found):
            return bytes(found.payload)
    mover.follow_evictions()
    return None


class Adoption:
    """Takes the blocks of one session into the tiers of the loaded model."""

    def __init__(self, mover: Mover, catalogue: Catalogue, group: str) -> None:
        self._mover = mover
        self._catalogue = catalogue
        self._group = group
        self._of: dict[str, Block] = {}
        self._pinned: list[Block] = []
        self._refused: Refused | None = None
        self.has_ended = False
        self.taken = Adopted()

    def label(self, key: str, label: bytes) -> Block | str:
        """Return the block with this label, not yet in the catalogue; or why it can't be taken. Any thread."""
        try:
            parent_key, block = from_label(key, label)
        except StoreError:
            return "damaged"
        parent = (self._of.get(parent_key) or self._catalogue.get(parent_key)) if parent_key else None
        named = (parent_key or None, block.ops, block.tokens)
        if block_key(self._catalogue.fingerprint, *named) != key:
            others = (block_key(other, *named) for other in stored_otherwise(self._catalogue.fingerprint))
            return "stored_otherwise" if key in others else "damaged"
        if parent_key and parent is None:
            return "parent_missing"
        if block.first != (parent.end if parent is not None else 0):
            return "damaged"
        block.parent = parent
        self._of[key] = block
        return block

    def block(self, key: str) -> Block | None:
        """Return a block whose label came."""
        return self._of.get(key)

    def take(self, batch: Sequence[tuple[Block, bytes]]) -> None:
        """Put blocks into the tiers; on the mover's thread. An empty payload is a label only."""
        mover, catalogue = self._mover, self._catalogue
        if mover.catalogue is not catalogue:
            self._leave_out("model_changed", (b for b, payload in batch if payload))
            return
        fresh: list[tuple[Block, bytes]] = []
        for came, payload in batch:
            block = catalogue.add(came.parent, came.ops, came.tokens, came.first, came.position)
            self._of[came.key] = block
            if block.has_copy or block.is_moving or not payload:
                self.taken.known += bool(payload)
                fresh += [] if block.has_copy or block.is_moving else [(block, b"")]
            elif mover.incoming is not None and len(payload) > mover.incoming.size_bytes:
                self._leave_out("stored_otherwise", (block,))
            else:
                fresh.append((block, payload))
        shared = [came.key for came, _ in batch if self._of[came.key].has_copy]
        if shared:
            mover.join(self._group, shared)
        stored = self._to_disk(fresh)
        for block, payload in fresh:
            if not payload:
                continue
            block.size_bytes = len(payload)
            if block.key not in stored and not self._to_ram(block, payload):
                self._leave_out("unwritable" if self._refused is Refused.UNWRITABLE else "no_room", (block,))
                continue
            if self._group not in block.groups:
                block.groups += (self._group,)
            self.taken.blocks += 1
            self.taken.tokens += len(block.tokens)
            self.taken.size_bytes += len(payload)

    def _to_disk(self, fresh: Sequence[tuple[Block, bytes]]) -> frozenset[str]:
        """Write blocks after what only RAM has of those they go on from: else they would lead nowhere after a restart."""
        mover = self._mover
        if mover.ssd is None or self._refused is not None or not fresh:
            return frozenset()
        above = dict.fromkeys(b for block, _ in fresh for b in mover.lacking_above(block))
        for block, _ in fresh:
            above.pop(block, None)
        blocks = [*((block, payload_of(mover, block) or b"") for block in above), *fresh]
        fingerprint = self._catalogue.fingerprint
        written = mover.ssd.write(
            [Outgoing(b.key, to_label(b), self._group, b.first, fingerprint, payload) for b, payload in blocks]
        )
        mover.follow_evictions()
        self._refused = written.refused
        stored = frozenset(written.keys)
        for block, payload in blocks:
            if block.key in stored:
                block.is_labelled = True
                block.on_ssd = block.on_ssd or bool(payload)
        return stored

    def _to_ram(self, block: Block, payload: bytes) -> bool:
        if not self._mover.store_in_ram(block, memoryview(payload)):
            return False
        self._catalogue.pin((block,))  # what came first may not make room for what comes later: it is of no use then
        self._pinned.append(block)
        return True

    def _leave_out(self, reason: str, blocks: Iterable[Block]) -> None:
        self.taken.left_out[reason] += sum(1 for _ in blocks)

    def end(self) -> None:
        """Let the blocks be like all others; those that lead to nothing go. On the mover's thread."""
        self.has_ended = True
        self._catalogue.unpin(self._pinned)
        self._pinned.clear()
        for block in reversed(list(self._of.values())):
            if self._catalogue.get(block.key) is block:
                self._catalogue.drop_empty(block)
