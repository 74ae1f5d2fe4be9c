"""The catalogue: every block of the loaded fingerprint, as a trie, and where its copies are.

Read and changed by the engine thread (finding, cutting, importing) and by the mover (copies that came and went): every
method takes the lock, none waits for anything else. Keeps invariant 2 for the tiers: a block is only found along equal
tokens *and* equal operations, compared one by one.
"""

from __future__ import annotations

import itertools
import threading
from array import array
from collections.abc import Iterable
from dataclasses import dataclass

from akashic_daemon.cache.keys import OpTable
from akashic_daemon.cache.tree import common_length
from akashic_daemon.errors import StoreError
from akashic_daemon.program.path import Op
from akashic_daemon.program.ranges import Ranges, normal
from akashic_daemon.tiers.arena import Slots
from akashic_daemon.tiers.block import Block, block_key, from_label, stretches


@dataclass(frozen=True, slots=True)
class Piece:
    """The first `count` tokens of a block, found along a key."""

    block: Block
    count: int

    @property
    def indices(self) -> tuple[int, int]:
        """The trajectory indices that it covers."""
        return self.block.first, self.block.first + self.count


@dataclass(frozen=True, slots=True)
class Loaded:
    """Keys of records that couldn't be taken in: their labels are damaged, or their parents are missing."""

    damaged: list[str]
    orphans: list[str]


class Catalogue:
    """The blocks of one fingerprint."""

    def __init__(self, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        self._roots: list[Block] = []
        self._blocks: dict[str, Block] = {}
        self._lock = threading.Lock()
        self._tick = itertools.count(1)

    def __len__(self) -> int:
        return len(self._blocks)

    def get(self, key: str) -> Block | None:
        """Return a block by its key."""
        return self._blocks.get(key)

    def blocks(self) -> list[Block]:
        """Return all blocks."""
        with self._lock:
            return list(self._blocks.values())

    def load(self, labels: Iterable[tuple[str, bytes, int]]) -> Loaded:
        """Take in what the SSD tier has: keys, labels and KV sizes.

        A label that isn't what its key says is left out, and with it all that leads on from it.
        """
        found: dict[str, tuple[str, Block]] = {}
        damaged: list[str] = []
        for key, label, size_bytes in labels:
            try:
                parent, block = from_label(key, label)
            except StoreError:
                damaged.append(key)
                continue
            if key != block_key(self.fingerprint, parent or None, block.ops, block.tokens):
                damaged.append(key)
                continue
            block.size_bytes, block.on_ssd, block.is_labelled = size_bytes, size_bytes > 0, True
            found[key] = parent, block
        with self._lock:
            waiting: dict[str, list[Block]] = {}
            for key, (parent, block) in found.items():
                if key not in self._blocks:
                    waiting.setdefault(parent, []).append(block)
            ready = list(waiting.pop("", []))
            for key, block in list(self._blocks.items()):
                for child in waiting.pop(key, []):
                    child.parent = block
                    ready.append(child)
            while ready:
                block = ready.pop()
                self._blocks[block.key] = block
                (self._roots if block.parent is None else block.parent.children).append(block)
                for child in waiting.pop(block.key, []):
                    child.parent = block
                    ready.append(child)
            return Loaded(damaged, [block.key for orphans in waiting.values() for block in orphans])

    def walk(self, key: array[int], table: OpTable) -> list[Piece]:
        """Return the known blocks along a key of the radix index, the last perhaps in part; and count them as used."""
        pieces: list[Piece] = []
        parent: Block | None = None
        with self._lock:
            tick = next(self._tick)
            for stretch in stretches(key, table):
                ops, at = stretch.ops, 0
                while at < len(stretch.tokens):
                    found = self._best(parent, ops, stretch.tokens, at, stretch.position + at)
                    if found is None:
                        return pieces
                    found.block.used = tick
                    pieces.append(found)
                    if found.count < len(found.block.tokens):
                        return pieces
                    parent, ops, at = found.block, (), at + found.count
        return pieces

    def _best(
        self, parent: Block | None, ops: tuple[Op, ...], tokens: array[int], at: int, position: int
    ) -> Piece | None:
        best: Piece | None = None
        for child in self._roots if parent is None else parent.children:
            if child.ops != ops or child.position != position or child.tokens[0] != tokens[at]:
                continue
            same = common_length(child.tokens, tokens[at : at + len(child.tokens)])
            if best is None or same > best.count:
                best = Piece(child, same)
        return best

    def add(self, parent: Block | None, ops: tuple[Op, ...], tokens: array[int], first: int, position: int) -> Block:
        """Return the block with this place in the trie, made if it wasn't known."""
        key = block_key(self.fingerprint, parent.key if parent is not None else None, ops, tokens)
        with self._lock:
            block = self._anchored(Block(key, parent, ops, tokens, first, position))
            block.used = next(self._tick)
            return block

    def _anchored(self, block: Block) -> Block:
        """Return the block of the trie that is this one; ancestors that were taken out meanwhile come back."""
        known = self._blocks.get(block.key)
        if known is not None:
            return known
        if block.parent is not None:
            block.parent = self._anchored(block.parent)
        self._blocks[block.key] = block
        (self._roots if block.parent is None else block.parent.children).append(block)
        return block

    def pin(self, blocks: Iterable[Block]) -> None:
        """Keep the RAM copies of blocks until `unpin`."""
        with self._lock:
            for block in blocks:
                block.pins += 1

    def unpin(self, blocks: Iterable[Block]) -> None:
        """End what `pin` began."""
        with self._lock:
            for block in blocks:
                block.pins -= 1

    def take_slots(self, block: Block) -> Slots | None:
        """Part a block from its RAM copy, which the caller then frees; None when it has none or somebody reads it."""
        with self._lock:
            if block.pins:
                return None
            slots, block.slots = block.slots, None
            return slots

    def drop_empty(self, block: Block | None) -> None:
        """Take a block out that has no copy and leads nowhere, and the ancestors that were only kept for it."""
        with self._lock:
            while block is not None and not self._is_of_use(block):
                if self._blocks.pop(block.key, None) is None:
                    return
                (self._roots if block.parent is None else block.parent.children).remove(block)
                block = block.parent

    @staticmethod
    def _is_of_use(block: Block) -> bool:
        return bool(block.children or block.has_copy or block.is_labelled or block.is_moving or block.pins)


def stored_ranges(pieces: Iterable[Piece]) -> Ranges:
    """Return which trajectory indices have a copy in a tier below the engine."""
    return normal(piece.indices for piece in pieces if piece.block.has_copy)
