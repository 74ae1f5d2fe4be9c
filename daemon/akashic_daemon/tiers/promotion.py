"""Bringing a path's blocks back into the engine: read from disk by the mover, imported on the engine thread in slices."""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from akashic_daemon.cache.index import RadixIndex
from akashic_daemon.cache.restore import RestorePlan, Restoring
from akashic_daemon.engine.base import Engine
from akashic_daemon.errors import EngineError
from akashic_daemon.program.active import Span
from akashic_daemon.program.ranges import intersect
from akashic_daemon.tiers.block import Block
from akashic_daemon.tiers.catalogue import Catalogue, Piece
from akashic_daemon.tiers.mover import Mover, Priority
from akashic_daemon.tiers.sink import Sink


@dataclass(slots=True)
class Promotion:
    """A path on its way back. `from_tier` counts tokens that came; `missing` blocks that couldn't be read."""

    key: array[int]
    plan: RestorePlan
    pieces: list[Piece]
    sink: Sink
    restoring: Restoring | None = None
    in_ram: deque[Piece] = field(default_factory=deque)
    on_disk: dict[Block, Piece] = field(default_factory=dict)
    from_tier: dict[str, int] = field(default_factory=dict)
    missing: int = 0
    no_room: bool = False

    @property
    def is_done(self) -> bool:
        """Whether nothing more is to come."""
        return not self.in_ram and not self.on_disk


class Promoter:
    """Promotes for one engine and its index."""

    def __init__(self, engine: Engine, index: RadixIndex, catalogue: Catalogue, mover: Mover) -> None:
        self._engine = engine
        self._index = index
        self._catalogue = catalogue
        self._mover = mover

    def begin(self, key: array[int], plan: RestorePlan, pieces: list[Piece], wake: Callable[[], None]) -> Promotion:
        """Start to bring the wanted pieces back. Raises NoSequence; then nothing was begun."""
        wanted = [p for p in pieces if intersect(plan.wanted, (p.indices,))]
        restoring = self._index.restorer.begin(key, plan.reach)
        self._catalogue.pin(p.block for p in wanted)
        promotion = Promotion(key, plan, wanted, Sink(wake), restoring)
        for piece in wanted:
            if piece.block.slots is not None:
                promotion.in_ram.append(piece)
            else:
                promotion.on_disk[piece.block] = piece
        if promotion.on_disk:
            blocks = list(promotion.on_disk)
            self._mover.submit(Priority.FETCH, lambda: self._mover.fetch(blocks, promotion.sink))
        return promotion

    def advance(self, promotion: Promotion, limit_s: float) -> bool:
        """Import what is there for about `limit_s`; True when everything came. Raises NoSequence."""
        until_s = time.monotonic() + limit_s
        while not promotion.is_done:
            if not self._import_one(promotion):
                return promotion.is_done
            if time.monotonic() >= until_s:
                break
        return promotion.is_done

    def end(self, promotion: Promotion) -> None:
        """Close a promotion, complete or not: what was imported stays, in an idle sequence."""
        incoming = self._mover.incoming
        for _, buffer, _ in promotion.sink.close():
            if buffer is not None and incoming is not None:
                incoming.give_back(buffer)
        promotion.in_ram.clear()
        promotion.on_disk.clear()
        self._catalogue.unpin(p.block for p in promotion.pieces)
        promotion.pieces = []
        if promotion.restoring is not None:
            self._index.restorer.end(promotion.restoring)
            promotion.restoring = None

    def _import_one(self, promotion: Promotion) -> bool:
        """Import one block; False when none is there yet."""
        incoming = self._mover.incoming
        assert incoming is not None
        arrival = promotion.sink.take()
        if arrival is not None:
            block, buffer, size_bytes = arrival
            piece = promotion.on_disk.pop(block, None)
            if buffer is None:
                promotion.missing += 1
                return True
            try:
                if piece is not None:
                    self._import(promotion, piece, buffer.view(size_bytes), "ssd")
            finally:
                incoming.give_back(buffer)
            return True
        if not promotion.in_ram:
            return False
        buffer = incoming.take()
        if buffer is None:
            return False
        piece = promotion.in_ram.popleft()
        try:
            slots = piece.block.slots
            assert slots is not None, "a pinned block lost its RAM copy"
            started_s = time.monotonic()
            data = self._mover.arena.read(slots, buffer.view(incoming.size_bytes))
            if self._mover.costs is not None:
                self._mover.costs.observe_arena_read(len(data), time.monotonic() - started_s)
            self._import(promotion, piece, data, "ram")
        finally:
            incoming.give_back(buffer)
        return True

    def _import(self, promotion: Promotion, piece: Piece, data: memoryview, tier: str) -> None:
        assert promotion.restoring is not None
        block = piece.block
        span = Span(block.first, len(block.tokens), block.position, 0)
        before = promotion.restoring.loaded
        started_s = time.monotonic()
        try:
            fits = self._index.restorer.load(
                promotion.restoring,
                span,
                intersect(promotion.plan.wanted, (piece.indices,)),
                lambda sequence: self._engine.import_cells(data, sequence, span.position, span.end),
            )
        except EngineError:
            promotion.missing += 1
            self._mover.moves.lose("import_failed")
            return
        if not fits:
            promotion.no_room = True
            promotion.missing += 1
            return
        if self._mover.costs is not None:
            self._mover.costs.observe_import(len(data), time.monotonic() - started_s)
        moves = self._mover.moves
        if tier == "ram":
            moves.promoted_ram_bytes += len(data)
            moves.promoted_ram_blocks += 1
        if block.prefetched:
            moves.prefetch_used_bytes += len(data)
            block.prefetched = False
        count = promotion.restoring.loaded - before
        promotion.from_tier[tier] = promotion.from_tier.get(tier, 0) + count
