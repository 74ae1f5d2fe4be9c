"""Cutting what is computed into blocks, and copying them out of the engine in short slices between its steps.

Runs on the engine thread. A request's *trail* says how far its path is cut; blocks are sealed as they fill up, at message
borders and before operations, and the last one when the request ends. What operations have dropped by then gets a label
only: nothing that goes on from here will read it (DESIGN section 5, admission).
"""

from __future__ import annotations

import logging
import time
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from akashic_daemon.cache.index import RadixIndex
from akashic_daemon.cache.keys import key_length, token_count
from akashic_daemon.engine.base import Engine
from akashic_daemon.errors import EngineError
from akashic_daemon.program.ranges import Ranges, intersect
from akashic_daemon.tiers.block import Block, stretches
from akashic_daemon.tiers.catalogue import Catalogue
from akashic_daemon.tiers.mover import Mover
from akashic_daemon.tiers.staging import Buffer
from akashic_daemon.types import BLOCK_TOKENS

logger = logging.getLogger("akashic.tiers")
_FEWEST_TAIL_TOKENS = 16
"""A request's last tokens are sealed when they are at least so many: fewer are computed again as fast as they are read."""


@dataclass(slots=True)
class Trail:
    """How far a request's path is cut: the last block and the tokens up to its end.

    borders: trajectory indices at which messages begin, ascending. group: whose blocks these are.
    """

    group: str
    borders: Sequence[int]
    tail: Block | None = None
    done: int = 0
    shared: list[str] = field(default_factory=list)
    """Keys of blocks that it found and that its session doesn't have yet."""
    lacking: deque[Block] = field(default_factory=deque)
    """Blocks that it found without a copy: made as soon as they are computed."""


@dataclass(frozen=True, slots=True)
class _Job:
    """A block to copy out; `key` leads up to its end."""

    block: Block
    key: array[int]
    length: int
    group: str


class Exporter:
    """Exports for one engine and its index."""

    def __init__(self, engine: Engine, index: RadixIndex, catalogue: Catalogue, mover: Mover, storage: str) -> None:
        self._engine = engine
        self._index = index
        self._catalogue = catalogue
        self._mover = mover
        self._storage = storage
        self._jobs: deque[_Job] = deque()
        self.min_recompute_s = 0.2
        """Blocks of a path that is computed again faster than this aren't written to disk."""

    @property
    def waiting(self) -> int:
        """Blocks that wait to be copied out."""
        return len(self._jobs)

    def follow(self, trail: Trail, key: array[int]) -> None:
        """Let a trail begin behind the blocks of its path that are known already.

        What has no copy, because it was lost or because nobody who could see it went on from it, gets one once the
        engine has it.
        """
        for piece in self._catalogue.walk(key, self._index.ops):
            block = piece.block
            if piece.count < len(block.tokens):
                break
            trail.tail, trail.done = block, block.end
            trail.shared.append(block.key)
            if not block.has_copy:
                trail.lacking.append(block)

    def cut(self, trail: Trail, key: array[int], visible: Ranges, computed: int, *, is_final: bool) -> None:
        """Seal what is computed: the first `computed` tokens of the path. `visible` is what its end can see."""
        while trail.lacking and trail.lacking[0].end <= computed:
            self._make_copy(trail, trail.lacking.popleft(), key, visible)
        for block in self._cut(trail, key, computed, is_final=is_final):
            if block.has_copy or block.is_moving or block.is_labelled:
                trail.shared.append(block.key)
            self._make_copy(trail, block, key, visible)

    def _make_copy(self, trail: Trail, block: Block, key: array[int], visible: Ranges) -> None:
        if not block.has_copy and not block.is_moving and intersect(visible, ((block.first, block.end),)):
            self._push(block, key, trail.group)

    def leave(self, trail: Trail) -> None:
        """End a trail: a last block that is a label only leads nowhere."""
        self._catalogue.drop_empty(trail.tail)

    def _cut(self, trail: Trail, key: array[int], computed: int, *, is_final: bool) -> Iterator[Block]:
        total = token_count(key)
        for stretch in stretches(key, self._index.ops):
            end_of_stretch = stretch.first + len(stretch.tokens)
            at = max(stretch.first, trail.done)
            while at < end_of_stretch:
                number = bisect_right(trail.borders, at)
                border = trail.borders[number] if number < len(trail.borders) else end_of_stretch + BLOCK_TOKENS
                end = min(at + BLOCK_TOKENS, border, end_of_stretch)
                is_whole = end in (at + BLOCK_TOKENS, border) or end == end_of_stretch < total
                if end > computed or not is_whole:
                    end = min(end, computed)
                    if not is_final or end - at < _FEWEST_TAIL_TOKENS:
                        return
                tokens = stretch.tokens[at - stretch.first : end - stretch.first]
                ops = stretch.ops if at == stretch.first else ()
                position = stretch.position + at - stretch.first
                trail.tail = self._catalogue.add(trail.tail, ops, tokens, at, position)
                trail.done = at = end
                yield trail.tail

    def _push(self, block: Block, key: array[int], group: str) -> None:
        block.is_moving = True
        length = key_length(key, block.end)
        self._jobs.append(_Job(block, key, length, group))

    def blocks_along(self, key: array[int], borders: Sequence[int], computed: int) -> list[Block]:
        """Return the blocks of a path's first tokens; those that no tier has are known for the caller alone."""
        trail = Trail("", borders)
        self.follow(trail, key)
        cut = list(self._cut(trail, key, computed, is_final=True))
        chain: list[Block] = []
        at = trail.tail
        while at is not None:
            chain.append(at)
            at = at.parent
        for block in reversed(cut):
            self._catalogue.drop_empty(block)
        return chain[::-1]

    def copy_now(self, key: array[int], block: Block) -> bytes | None:
        """Return the KV of a block from the engine's own cells; None when it hasn't all of them. Raises EngineError."""
        count = len(block.tokens)
        with self._index.holding(key[: key_length(key, block.end)], block.first, count) as sequence:
            if sequence is None:
                return None
            buffer = memoryview(bytearray(self._engine.export_bytes(count, self._storage)))
            size_bytes = self._engine.export_cells(
                sequence, block.position, block.position + count, buffer, self._storage
            )
        return bytes(buffer[:size_bytes])

    def export(self, limit_s: float) -> bool:
        """Copy blocks out for about `limit_s`; False when nothing more can be done now."""
        until_s = time.monotonic() + limit_s
        while self._jobs:
            if not self._export_next():
                return False
            if time.monotonic() >= until_s:
                return bool(self._jobs)
        return False

    def flush(self, limit_s: float) -> None:
        """Copy everything out that waits, before cells are evicted; waits for the mover's buffers at most `limit_s`."""
        until_s = time.monotonic() + limit_s
        while self._jobs and time.monotonic() < until_s:
            if not self._export_next():
                if self._mover.waits_for_engine:
                    return  # no buffer comes back as long as this thread waits
                time.sleep(0.0005)

    def regroup(self, old: str, new: str | None) -> None:
        """Give what waits of a group to another; None drops it: its session is gone."""
        for job in [self._jobs.popleft() for _ in range(len(self._jobs))]:
            if job.group != old:
                self._jobs.append(job)
            elif new is not None:
                self._jobs.append(replace(job, group=new))
            else:
                job.block.is_moving = False
                self._catalogue.drop_empty(job.block)

    def forget_all(self) -> None:
        """Drop what waits: the cells are gone."""
        for job in self._jobs:
            job.block.is_moving = False
            self._catalogue.drop_empty(job.block)
        self._jobs.clear()

    def _export_next(self) -> bool:
        staging = self._mover.outgoing
        buffer = staging.take() if staging is not None else None
        if buffer is None or staging is None:
            return False
        job = self._jobs.popleft()
        try:
            size_bytes = self._export(job, buffer, staging.size_bytes)
        except BaseException:
            self._give_up(job.block, buffer, "export_failed")
            raise
        if size_bytes is None:
            return True
        to_disk = self._is_worth_disk(job.block)
        self._mover.submit_store(lambda: self._mover.store(job.block, buffer, size_bytes, job.group, to_disk=to_disk))
        return True

    def _export(self, job: _Job, buffer: Buffer, buffer_bytes: int) -> int | None:
        """Copy a block into the buffer; return its size, None when it can't be: it was given up then."""
        block, count = job.block, len(job.block.tokens)
        size_bytes: int | None = None
        reason = ""
        with self._index.holding(job.key[: job.length], block.first, count) as sequence:
            if sequence is None:
                reason = "evicted_before_copy"
            else:
                try:
                    size_bytes = self._engine.export_cells(
                        sequence, block.position, block.position + count, buffer.view(buffer_bytes), self._storage
                    )
                except EngineError as error:
                    logger.error("copying the KV of %d tokens out of the engine: %s", count, error)
                    reason = "export_failed"
        if size_bytes is None:
            self._give_up(block, buffer, reason)
        return size_bytes

    def _give_up(self, block: Block, buffer: Buffer, reason: str) -> None:
        block.is_moving = False
        self._mover.moves.lose(reason)
        self._catalogue.drop_empty(block)
        assert self._mover.outgoing is not None
        self._mover.outgoing.give_back(buffer)

    def _is_worth_disk(self, block: Block) -> bool:
        costs = self._mover.costs
        per_token_s = costs.compute_s_per_token if costs is not None else None
        return per_token_s is None or block.end * per_token_s >= self.min_recompute_s
