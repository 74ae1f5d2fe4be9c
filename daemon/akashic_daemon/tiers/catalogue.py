"""The catalogue: every block of the loaded fingerprint, as a trie, and where its copies are.

Read and changed by the engine thread (finding, cutting, importing) and by the mover (copies that came and went): every
method takes the lock, none waits for anything else. Keeps invariant 2 for the tiers: a block is only found along equal
tokens *and* equal operations, compared one by one.
"""

from __future__ import annotations

import itertools
import threading
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from akashic_daemon.cache.keys import OpTable
from akashic_daemon.cache.tree import common_length
from akashic_daemon.errors import StoreError
from akashic_daemon.program.path import Op
from akashic_daemon.program.ranges import Ranges, normal
from akashic_daemon.tiers.arena import Slots
from akashic_daemon.tiers.block import Block, Stretch, block_key, from_label, stretches


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


class _Runs:
    """The stretches of a key, made as far as they are asked for."""

    def __init__(self, left: Iterator[Stretch]) -> None:
        self._left = left
        self._made: list[Stretch] = []

    def get(self, number: int) -> Stretch | None:
        """Return a stretch, None behind the last."""
        while number >= len(self._made):
            found = next(self._left, None)
            if found is None:
                return None
            self._made.append(found)
        return self._made[number]


class _Step:
    """A piece on one chain of blocks: it ends at `offset` of a key's stretch `number`."""

    __slots__ = ("before", "number", "offset", "piece", "score")

    def __init__(self, piece: Piece, before: _Step | None, number: int, offset: int) -> None:
        self.piece, self.before, self.number, self.offset = piece, before, number, offset
        stored, reach = before.score if before is not None else (0, 0)
        self.score: tuple[int, int] = (stored + piece.count * piece.block.has_copy, reach + piece.count)

    @property
    def is_whole(self) -> bool:
        """Whether the chain may go on behind it."""
        return self.piece.count == len(self.piece.block.tokens)


class Catalogue:
    """The blocks of one fingerprint (`block.stored_fingerprint`: how KV is stored is part of it)."""

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
        """Return known blocks along a key of the radix index, the last perhaps in part; and count them as used.

        Requests that began or ended at different tokens cut the same text differently. Of several chains that follow the
        key, the one with the most copies is returned, then the one that reaches furthest.
        """
        runs = _Runs(stretches(key, table))
        best: _Step | None = None
        with self._lock:
            waiting: list[_Step | None] = [None]
            while waiting:
                at = waiting.pop()
                if at is not None and (best is None or at.score > best.score):
                    best = at
                if at is None or at.is_whole:
                    waiting.extend(self._next(at, runs))
            pieces: list[Piece] = []
            tick = next(self._tick)
            while best is not None:
                best.piece.block.used = tick
                pieces.append(best.piece)
                best = best.before
        return pieces[::-1]

    def _next(self, at: _Step | None, runs: _Runs) -> list[_Step]:
        """Return the pieces that follow a step."""
        number, offset = (at.number, at.offset) if at is not None else (0, 0)
        stretch = runs.get(number)
        if stretch is not None and offset == len(stretch.tokens):
            number, offset = number + 1, 0
            stretch = runs.get(number)
        if stretch is None:
            return []
        tokens, position = stretch.tokens, stretch.position + offset
        ops = stretch.ops if offset == 0 else ()
        found: list[_Step] = []
        for child in self._roots if at is None else at.piece.block.children:
            if child.position == position and child.tokens[0] == tokens[offset] and child.ops == ops:
                count = common_length(child.tokens, tokens[offset : offset + len(child.tokens)])
                found.append(_Step(Piece(child, count), at, number, offset + count))
        return found

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
        """End what `pin` began; what lost its last copy meanwhile goes now."""
        released = list(blocks)
        with self._lock:
            for block in released:
                block.pins -= 1
        for block in released:
            self.drop_empty(block)

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
                if self._blocks.get(block.key) is not block:
                    return  # it was taken out before; what has its key now was made anew, for others
                del self._blocks[block.key]
                (self._roots if block.parent is None else block.parent.children).remove(block)
                block = block.parent

    @staticmethod
    def _is_of_use(block: Block) -> bool:
        return bool(block.children or block.has_copy or block.is_labelled or block.is_moving or block.pins)


def stored_ranges(pieces: Iterable[Piece]) -> Ranges:
    """Return which trajectory indices have a copy in a tier below the engine."""
    return normal(piece.indices for piece in pieces if piece.block.has_copy)
