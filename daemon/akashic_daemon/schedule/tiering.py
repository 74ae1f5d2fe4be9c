"""What the step loop does with the tiers: look ahead, bring back, copy out, and park what would slow others.

Everything here runs on the engine thread, between steps, in slices: while streams are being answered a slice is a small
part of a step. Without tiers (none configured, or a model whose KV can't be exported) every method does nothing.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from akashic_daemon.cache.index import NoSequence, RadixIndex
from akashic_daemon.cache.node import Lineage, Node
from akashic_daemon.cache.restore import RestorePlan
from akashic_daemon.engine.base import Engine
from akashic_daemon.errors import AkashicError, EngineError
from akashic_daemon.program.active import active_cache
from akashic_daemon.program.path import Path
from akashic_daemon.program.ranges import Ranges, intersect, size, subtract, union
from akashic_daemon.program.route import Route
from akashic_daemon.tiers.arena import Arena
from akashic_daemon.tiers.block import stored_fingerprint
from akashic_daemon.tiers.catalogue import Catalogue, Piece, stored_ranges
from akashic_daemon.tiers.costs import Costs
from akashic_daemon.tiers.exporter import Exporter, Trail
from akashic_daemon.tiers.jobs import Priority
from akashic_daemon.tiers.mover import Mover
from akashic_daemon.tiers.promotion import Promoter, Promotion
from akashic_daemon.tiers.staging import Staging
from akashic_daemon.types import BLOCK_TOKENS

logger = logging.getLogger("akashic.tiers")
_SLOT_TOKENS = 16
_STAGING_BYTES = 64 << 20
_IDLE_SLICE_S = 0.05
_BUSY_SHARE = 0.15
"""Of a step's time, what all moving together may take while streams are being answered."""
_LEAST_SLICE_S = 0.0005
"""A request that waits for its KV gets at least so much of each step: a block."""
_SPARE_SHARE = 8
"""Of the cells, this part must stay free when a hinted session is brought back while others run."""
_SPARE_SEQUENCES = 3
_LOOK_AGAIN_S = 0.5
"""So long a hinted session waits that had no room beside those that run."""
_TOKENS_AHEAD = 64
"""So many tokens of others are expected before an idle session's next turn."""
_OPEN_TOKENS = BLOCK_TOKENS
"""An idle session may be parked although so many of its last tokens aren't stored: they are computed again."""
_FLUSH_S = 2.0
_KEEP_COSTS_S = 60.0
_USUAL_S_PER_BYTE = 1 / 2e9
"""What importing a byte is taken to cost until it was measured."""


@dataclass(frozen=True, slots=True)
class TierSettings:
    """ram_bytes_beside: the RAM tier's budget beside a loaded model. storage: how exported KV is kept."""

    ram_bytes_beside: Callable[[Engine], int]
    storage: str
    make_costs: Callable[[str], Costs]


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a path would cost: `computed` tokens, after loading what the plan wants from `pieces`.

    too_dear: of the computed ones, those that the tiers have, but that take longer to load.
    """

    computed: int
    plan: RestorePlan | None = None
    pieces: tuple[Piece, ...] = ()
    too_dear: int = 0

    @property
    def cells(self) -> int:
        """Cells that it needs."""
        return self.computed + (self.plan.loaded if self.plan is not None else 0)


@dataclass(slots=True)
class _Hint:
    """A session whose next turn is expected."""

    key: array[int]
    due_s: float
    until_s: float
    is_ready: bool = False


class Tiering:
    """The tiers as the step loop sees them. `wake` lets a loop that sleeps look again; any thread may call it."""

    def __init__(self, settings: TierSettings | None, mover: Mover | None, wake: Callable[[], None]) -> None:
        self._settings = settings
        self._mover = mover
        self._wake = wake
        self._engine: Engine | None = None
        self._index: RadixIndex | None = None
        self._catalogue: Catalogue | None = None
        self._exporter: Exporter | None = None
        self._promoter: Promoter | None = None
        self._hints: dict[str, _Hint] = {}
        self._warming: Promotion | None = None
        self._left_s = 0.0
        """What is left of this step's slice."""
        self._no_room_until_s = 0.0
        self._costs_kept_s = 0.0
        self.problem: str | None = None
        """Why the loaded model's KV goes to no tier."""
        self.parked_tokens = 0
        self.hints_met = 0
        """Sessions that came when they were expected, or before."""
        self.hints_expired = 0

    # -- models ------------------------------------------------------------------------------------------------

    def attach(self, engine: Engine, index: RadixIndex) -> None:
        """Serve a model that was loaded."""
        settings, mover = self._settings, self._mover
        if settings is None or mover is None:
            return
        try:
            block_bytes = engine.export_bytes(BLOCK_TOKENS, settings.storage)
            slot_bytes = engine.export_bytes(_SLOT_TOKENS, settings.storage)
        except AkashicError as error:
            self.problem = str(error)
            logger.warning("the KV of %s stays in the engine: %s", engine.model.name, error)
            return
        count = max(2, min(8, _STAGING_BYTES // block_bytes))
        catalogue = Catalogue(stored_fingerprint(engine.model.fingerprint, settings.storage))
        arena = Arena(settings.ram_bytes_beside(engine), slot_bytes)
        outgoing, incoming = Staging(count, block_bytes), Staging(count, block_bytes)
        costs = settings.make_costs(catalogue.fingerprint)
        mover.call(lambda: mover.serve(catalogue, arena, outgoing, incoming, costs), priority=Priority.LAST)
        self._engine, self._catalogue, self.problem = engine, catalogue, None
        self.bind(index)

    def bind(self, index: RadixIndex) -> None:
        """Go on with a new index of the same engine."""
        self._index = index
        index.before_eviction = self.before_eviction
        engine, catalogue, mover, settings = self._engine, self._catalogue, self._mover, self._settings
        if engine is None or catalogue is None or mover is None or settings is None:
            return
        self.abandon()
        self._exporter = Exporter(engine, index, catalogue, mover, settings.storage)
        self._promoter = Promoter(engine, index, catalogue, mover)

    def abandon(self, promotions: Iterable[Promotion] = ()) -> None:
        """Forget what was under way, these promotions too: the cells that it spoke of are gone."""
        if self._exporter is not None:
            self._exporter.forget_all()
        for promotion in (*promotions, *([self._warming] if self._warming is not None else [])):
            assert self._promoter is not None
            self._promoter.abandon(promotion)
        self._warming = None
        self._hints.clear()

    def detach(self, *, copy_out: bool = True) -> None:
        """Copy out what waits; the model is about to go."""
        try:
            if self._exporter is not None and copy_out:
                self._end_warming()
                self._exporter.flush(_FLUSH_S)
                self._keep_costs(at_once=True)
        finally:
            self.abandon()
            self._engine = self._index = self._exporter = self._promoter = self._catalogue = None

    @property
    def catalogue(self) -> Catalogue | None:
        """The blocks of the loaded model."""
        return self._catalogue

    @property
    def exporter(self) -> Exporter | None:
        """What copies blocks of the loaded model out; None without tiers."""
        return self._exporter

    # -- a request on its way ----------------------------------------------------------------------------------

    def outlook(self, key: array[int]) -> Outlook:
        """Tell what a path would cost now, the cheaper of loading and computing what the tiers have."""
        index, catalogue = self._index, self._catalogue
        assert index is not None
        if catalogue is None:
            return Outlook(index.missing_tokens(key))
        pieces = catalogue.walk(key, index.ops)
        known = pieces[-1].indices[1] if pieces else 0
        plan = index.restorer.plan(key, len(key) - 1, stored_ranges(pieces), known)
        if not plan.wanted or not self._pays(plan, pieces):
            return Outlook(plan.computed_without, too_dear=plan.computed_without - plan.computed)
        return Outlook(plan.computed, plan, tuple(pieces))

    def _pays(self, plan: RestorePlan, pieces: Iterable[Piece]) -> bool:
        costs = self._mover.costs if self._mover is not None else None
        if costs is None:
            return False
        ram_bytes = ssd_bytes = 0
        for piece in pieces:
            if intersect(plan.wanted, (piece.indices,)):
                if piece.block.slots is not None:
                    ram_bytes += piece.block.size_bytes
                else:
                    ssd_bytes += piece.block.size_bytes
        return costs.reload_pays(plan.computed_without - plan.computed, ram_bytes, ssd_bytes)

    def look_ahead(self, key: array[int]) -> None:
        """Let the disk read what a request that waits will want."""
        found = self.outlook(key)
        if self._mover is None or found.plan is None:
            return
        wanted = found.plan.wanted
        blocks = [p.block for p in found.pieces if p.block.slots is None and intersect(wanted, (p.indices,))]
        if blocks:
            mover = self._mover
            mover.submit(Priority.PREFETCH, lambda: mover.prefetch(blocks))

    def promote(self, key: array[int], outlook: Outlook) -> Promotion | None:
        """Begin to bring back what a path wants; None when that is nothing. Raises NoSequence."""
        if outlook.plan is None or self._promoter is None:
            return None
        return self._promoter.begin(key, outlook.plan, list(outlook.pieces), self._wake)

    def advance(self, promotion: Promotion, *, is_streaming: bool) -> bool:
        """Import for a slice; True when everything is there. Raises NoSequence."""
        assert self._promoter is not None
        if not is_streaming:
            return self._promoter.advance(promotion, _IDLE_SLICE_S)
        with self._of_slice():
            return self._promoter.advance(promotion, max(_LEAST_SLICE_S, self._left_s))

    def end_promotion(self, promotion: Promotion) -> None:
        """Close a promotion, complete or not. What the engine raises the index remembers."""
        assert self._promoter is not None
        with suppress(EngineError):
            self._promoter.end(promotion)

    # -- copying out -------------------------------------------------------------------------------------------

    def trail(self, group: str | None, route: Route, key: array[int]) -> Trail | None:
        """Begin to follow a request's path."""
        if self._exporter is None:
            return None
        owners = route.owners
        borders = [i for i in range(1, len(owners)) if owners[i] != owners[i - 1]]
        trail = Trail(group or "", borders)
        self._exporter.follow(trail, key)
        return trail

    def cut(self, trail: Trail, path: Path, key: array[int], computed: int, *, is_final: bool) -> None:
        """Seal what a request has computed. `path` is its prompt's, `key` goes on with what it generated."""
        if self._exporter is None:
            return
        is_due = computed - trail.done >= BLOCK_TOKENS or (trail.lacking and trail.lacking[0].end <= computed)
        if not is_final and not is_due:
            return
        visible: Ranges = union(active_cache(path).indices, ((len(path.tokens), max(computed, len(path.tokens) + 1)),))
        self._exporter.cut(trail, key, visible, computed, is_final=is_final)
        if is_final and trail.shared and self._mover is not None:
            mover, keys = self._mover, list(trail.shared)
            mover.submit(Priority.WRITE, lambda: mover.join(trail.group, keys))

    def end_trail(self, trail: Trail) -> None:
        """Let go of what only a request that ended needed."""
        if self._exporter is not None:
            self._exporter.leave(trail)

    def observe_prefill(self, tokens: int, seconds: float) -> None:
        """Learn what computing costs."""
        if self._mover is not None and self._mover.costs is not None:
            self._mover.costs.observe_prefill(tokens, seconds)

    def _keep_costs(self, *, at_once: bool = False) -> None:
        """Let what was measured be written down, now and then."""
        now_s = time.monotonic()
        mover = self._mover
        if mover is not None and mover.costs is not None and (at_once or now_s - self._costs_kept_s > _KEEP_COSTS_S):
            self._costs_kept_s = now_s
            mover.submit(Priority.WRITE, mover.costs.save)

    def between_steps(self, step_s: float, *, is_streaming: bool, is_crowded: bool) -> None:
        """Copy blocks out for a slice, and bring back a hinted session's with what is left of it.

        is_crowded: requests wait for a place or for their KV, so that a hinted session has to wait.
        """
        self._left_s = max(_LEAST_SLICE_S, _BUSY_SHARE * step_s)
        if self._exporter is not None and self._exporter.waiting:
            with self._of_slice():
                self._exporter.export(self._left_s if is_streaming else _IDLE_SLICE_S)
        if is_crowded or not self._hints or self._slows_others():
            self._interrupt_warming()
        elif self._left_s > 0 and self._promoter is not None:
            with self._of_slice():
                self._warm(self._left_s, is_alone=False)

    @contextmanager
    def _of_slice(self) -> Iterator[None]:
        """Take the time that something takes from the step's slice."""
        started_s = time.monotonic()
        try:
            yield
        finally:
            self._left_s -= time.monotonic() - started_s

    def _slows_others(self) -> bool:
        """Tell whether idle cells cost running requests time in each step, as long as they are there."""
        return self._engine is None or self._engine.capabilities.hole_s > 0

    def idle_work(self) -> float | None:
        """Do a slice of what can be done while nothing runs; return seconds until there may be more, None for never."""
        if self._exporter is None:
            return None
        self._keep_costs()
        if self._exporter.waiting:
            return 0.0 if self._exporter.export(_IDLE_SLICE_S) else 0.002
        return self._warm(_IDLE_SLICE_S, is_alone=True)

    def before_eviction(self) -> None:
        """Let nothing be evicted of which a copy is about to be made."""
        if self._exporter is not None and self._exporter.waiting:
            self._exporter.flush(_FLUSH_S)

    # -- parking -----------------------------------------------------------------------------------------------

    def park(self) -> int:
        """Let idle sessions go whose cells slow the running ones more than bringing them back costs; returns the cells."""
        index, engine = self._index, self._engine
        if index is None or engine is None or self._catalogue is None or not engine.capabilities.hole_s:
            return 0
        costs = self._mover.costs if self._mover is not None else None
        if costs is None or engine.capabilities.hole_s * _TOKENS_AHEAD <= self._import_s_per_token(engine, costs):
            return 0
        now_s = time.monotonic()
        waited_for = {index.match(h.key).node for h in self._hints.values() if h.until_s > now_s}
        freed = 0
        for sequence, node in index.idle():
            if node in waited_for:
                continue
            homes = index.idle_homes(sequence)
            if homes and self._is_stored(index, node, homes):
                freed += index.park(sequence)
        self.parked_tokens += freed
        return freed

    @staticmethod
    def _import_s_per_token(engine: Engine, costs: Costs) -> float:
        return (costs.import_s_per_byte or _USUAL_S_PER_BYTE) * engine.model.kv_bytes_per_token

    def _is_stored(self, index: RadixIndex, node: Node, homes: Iterable[tuple[Node, Ranges]]) -> bool:
        assert self._catalogue is not None
        stored = stored_ranges(self._catalogue.walk(_key_of(node), index.ops))
        open_tokens = 0
        for home, ranges in homes:
            missing = subtract(ranges, stored)
            if missing and missing[0][0] < (stored[-1][1] if stored else 0):
                return False
            open_tokens += size(missing) if home.is_run else 0
        return open_tokens < _OPEN_TOKENS

    # -- hints -------------------------------------------------------------------------------------------------

    def hint(self, session: str, key: array[int], expected_s: float) -> None:
        """Expect a session's next turn in so many seconds: its cells are there by then, and stay a while.

        What only the disk has is read into RAM at once; the import waits until shortly before, for an idle moment or, where
        idle cells slow nobody, for room that nothing uses.
        """
        now_s = time.monotonic()
        if self._index is not None:
            self.look_ahead(key)
        self._hints[session] = _Hint(key, now_s + max(0.0, expected_s * 0.8 - 0.5), now_s + expected_s * 2 + 30.0)

    def pieces(self, key: array[int]) -> list[Piece]:
        """Return the blocks that the tiers know along a path, and count them as used."""
        index, catalogue = self._index, self._catalogue
        return catalogue.walk(key, index.ops) if index is not None and catalogue is not None else []

    def regroup(self, old: str, new: str | None) -> None:
        """Give what waits to be copied out of a session to another; None drops it: the session is gone."""
        self._hints.pop(old, None)
        if self._exporter is not None:
            self._exporter.regroup(old, new)

    def forget_hint(self, session: str | None) -> None:
        """Expect nothing more: the turn came."""
        if session is not None and self._hints.pop(session, None) is not None:
            self.hints_met += 1

    def cancel_hint(self, session: str) -> None:
        """Expect nothing more: the turn won't come."""
        self._hints.pop(session, None)

    def _warm(self, limit_s: float, *, is_alone: bool) -> float | None:
        """Bring back what a hinted session will want, when it is due; return seconds until more is to be done.

        Unless it is alone, it takes room that nothing uses, and no other.
        """
        assert self._promoter is not None
        now_s = time.monotonic()
        if self._warming is not None:
            try:
                is_complete = self._promoter.advance(self._warming, limit_s)
            except NoSequence:  # what came stays, the rest is computed
                is_complete = True
            if is_complete:
                self._end_warming()
                return 0.0
            return 0.002
        if not is_alone and now_s < self._no_room_until_s:
            return None
        for session, hint in list(self._hints.items()):
            if hint.until_s <= now_s:
                del self._hints[session]
                self.hints_expired += 1
            elif hint.due_s <= now_s and not hint.is_ready:
                found = self.outlook(hint.key)
                if not is_alone and not self._has_room(found):
                    self._no_room_until_s = now_s + _LOOK_AGAIN_S
                    continue
                hint.is_ready = True
                if found.plan is not None:
                    with suppress(NoSequence):
                        self._warming = self._promoter.begin(hint.key, found.plan, list(found.pieces), self._wake)
                    return 0.0
        due = [h.due_s for h in self._hints.values() if not h.is_ready]
        return max(0.0, min(due) - now_s) if due else None

    def _has_room(self, outlook: Outlook) -> bool:
        """Tell whether what a path would load fits beside everything that is there."""
        index = self._index
        assert index is not None
        loaded = outlook.plan.loaded if outlook.plan is not None else 0
        has_cells = loaded + index.cells_total // _SPARE_SHARE <= index.cells_free
        return has_cells and index.sequences_used + _SPARE_SEQUENCES <= index.sequences_total

    def _interrupt_warming(self) -> None:
        """Stop warming: requests need the sequences and buffers that it takes. It begins anew when they don't."""
        warming = self._warming
        if warming is not None:
            for hint in self._hints.values():
                if hint.key == warming.key:
                    hint.is_ready = warming.is_done
            self._end_warming()

    def _end_warming(self) -> None:
        if self._warming is not None and self._promoter is not None:
            self._promoter.end(self._warming)
        self._warming = None


def _key_of(node: Node) -> array[int]:
    """Return the key from the root to the end of a node."""
    key = array("i")
    for at in Lineage.of(node).nodes:
        key.extend(at.key)
    return key
