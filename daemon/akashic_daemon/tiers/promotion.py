"""Bringing a path's blocks back into the engine: read from disk by the mover, imported on the engine thread in slices."""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from akashic_daemon.cache.index import NoSequence, RadixIndex
from akashic_daemon.cache.restore import RestorePlan, Restoring
from akashic_daemon.engine.base import Engine, PackedRun
from akashic_daemon.errors import EngineError
from akashic_daemon.program.active import Span
from akashic_daemon.program.ranges import intersect
from akashic_daemon.tiers.block import Block
from akashic_daemon.tiers.catalogue import Catalogue, Piece
from akashic_daemon.tiers.jobs import Priority
from akashic_daemon.tiers.mover import Mover
from akashic_daemon.tiers.sink import Arrival, Sink
from akashic_daemon.tiers.staging import Buffer
from akashic_daemon.types import BLOCK_TOKENS

_SHORT_TOKENS = 48
"""Blocks of fewer tokens are imported together: each call of the engine looks at all of its cells."""
_TOGETHER_TOKENS = BLOCK_TOKENS
"""No more than about so many at once, so that a slice stays one."""


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


@dataclass(frozen=True, slots=True)
class _Load:
    """A block's KV that came."""

    piece: Piece
    data: memoryview

    @property
    def span(self) -> Span:
        """Where its cells go."""
        block = self.piece.block
        return Span(block.first, len(block.tokens), block.position, 0)

    @property
    def is_short(self) -> bool:
        """Whether it is imported faster together with others."""
        return self.span.length < _SHORT_TOKENS

    def follows(self, other: _Load) -> bool:
        """Tell whether it goes on where another ends, so that both can go to one sequence."""
        return (other.span.indices[1], other.span.end) == (self.span.first, self.span.position)


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
            if not self._import_next(promotion):
                return promotion.is_done
            if time.monotonic() >= until_s:
                break
        return promotion.is_done

    def end(self, promotion: Promotion) -> None:
        """Close a promotion, complete or not: what was imported stays, in an idle sequence."""
        restoring = promotion.restoring
        self.abandon(promotion)
        if restoring is not None and self._index.failed is None:
            self._index.restorer.end(restoring)

    def abandon(self, promotion: Promotion) -> None:
        """Close a promotion whose cells are gone with the whole cache."""
        incoming = self._mover.incoming
        for _, buffer, _ in promotion.sink.close():
            if buffer is not None and incoming is not None:
                incoming.give_back(buffer)
        promotion.in_ram.clear()
        promotion.on_disk.clear()
        self._catalogue.unpin(p.block for p in promotion.pieces)
        promotion.pieces = []
        promotion.restoring = None

    def _import_next(self, promotion: Promotion) -> bool:
        """Import a block, or several short ones; False when none is there yet."""
        arrival = promotion.sink.take()
        if arrival is not None:
            self._import_arrived(promotion, arrival)
            return True
        return bool(promotion.in_ram) and self._import_from_ram(promotion)

    def _import_arrived(self, promotion: Promotion, arrival: Arrival | None) -> None:
        """Import what was read from disk; short blocks together with those that came after them."""
        incoming = self._mover.incoming
        assert incoming is not None
        taken: list[Buffer] = []
        loads: list[_Load] = []
        try:
            while arrival is not None:
                block, buffer, size_bytes = arrival
                piece = promotion.on_disk.pop(block, None)
                if buffer is None:
                    promotion.missing += 1
                else:
                    taken.append(buffer)
                    if piece is not None:
                        loads.append(_Load(piece, buffer.view(size_bytes)))
                arrival = promotion.sink.take() if _may_go_on(loads) else None
            self._import_all(promotion, loads, "ssd")
        finally:
            for buffer in taken:
                incoming.give_back(buffer)

    def _import_from_ram(self, promotion: Promotion) -> bool:
        """Import the next block that RAM has, and short ones that follow it, side by side in one buffer."""
        incoming = self._mover.incoming
        assert incoming is not None
        buffer = incoming.take()
        if buffer is None:
            return False
        loads: list[_Load] = []
        used_bytes = 0
        try:
            while promotion.in_ram and (not loads or _may_go_on(loads)):
                slots = promotion.in_ram[0].block.slots
                assert slots is not None, "a pinned block lost its RAM copy"
                if used_bytes + slots.size_bytes > incoming.size_bytes:
                    break
                started_s = time.monotonic()
                data = self._mover.arena.read(slots, buffer.view(incoming.size_bytes)[used_bytes:])
                if self._mover.costs is not None:
                    self._mover.costs.observe_arena_read(len(data), time.monotonic() - started_s)
                used_bytes += slots.size_bytes
                loads.append(_Load(promotion.in_ram.popleft(), data))
            self._import_all(promotion, loads, "ram")
        finally:
            incoming.give_back(buffer)
        return True

    def _import_all(self, promotion: Promotion, loads: Sequence[_Load], tier: str) -> None:
        """Import blocks, those at once that go on from each other and are short."""
        group: list[_Load] = []
        for load in loads:
            if group and not (group[-1].is_short and load.is_short and load.follows(group[-1])):
                self._import(promotion, group, tier)
                group = []
            group.append(load)
        if group:
            self._import(promotion, group, tier)

    def _import(self, promotion: Promotion, loads: Sequence[_Load], tier: str) -> None:
        """Import blocks at once; where that can't be, one by one."""
        assert promotion.restoring is not None
        data = {load.span: load.data for load in loads}
        before = promotion.restoring.loaded
        started_s = time.monotonic()
        try:
            fits = self._index.restorer.load(
                promotion.restoring,
                [(load.span, intersect(promotion.plan.wanted, (load.piece.indices,))) for load in loads],
                lambda sequence, spans: self._engine.import_runs(
                    [PackedRun(data[span], span.position, span.end) for span in spans], sequence
                ),
            )
            failed = False
        except NoSequence:  # a second copy at one position needs a sequence of its own
            fits, failed = False, False
        except EngineError:
            fits, failed = False, True
        if not fits:
            self._do_without(promotion, loads, tier, failed=failed)
            return
        size_bytes = sum(len(load.data) for load in loads)
        if self._mover.costs is not None:
            self._mover.costs.observe_import(size_bytes, time.monotonic() - started_s)
        moves = self._mover.moves
        if tier == "ram":
            moves.promoted_ram_bytes += size_bytes
            moves.promoted_ram_blocks += len(loads)
        for load in loads:
            if load.piece.block.prefetched:
                moves.prefetch_used_bytes += len(load.data)
                load.piece.block.prefetched = False
        count = promotion.restoring.loaded - before
        promotion.from_tier[tier] = promotion.from_tier.get(tier, 0) + count

    def _do_without(self, promotion: Promotion, loads: Sequence[_Load], tier: str, *, failed: bool) -> None:
        """Try blocks one by one that didn't go together; note a single one that didn't go."""
        if len(loads) > 1:
            for load in loads:
                self._import(promotion, [load], tier)
            return
        promotion.missing += 1
        if failed:
            self._mover.moves.lose("import_failed")
        else:
            promotion.no_room = True


def _may_go_on(loads: Sequence[_Load]) -> bool:
    """Tell whether more is worth taking before what was taken is imported."""
    return bool(loads) and loads[-1].is_short and sum(load.span.length for load in loads) < _TOGETHER_TOKENS
