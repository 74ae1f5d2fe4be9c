"""The queue, and how a request gets from it into the running batch: its route chosen, its cells brought back, its place taken.

Runs on the engine thread. A request whose KV lies in a lower tier runs in state RELOAD until that is imported, while
others go on computing. Keeps invariant 5: what is reused, and from where, is told when computing begins.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from akashic_daemon.cache.index import NoSequence, RadixIndex
from akashic_daemon.cache.keys import token_count
from akashic_daemon.config import ScheduleSection
from akashic_daemon.engine.base import Engine
from akashic_daemon.errors import AkashicError, EngineError, Overloaded, PromptTooLong
from akashic_daemon.schedule.batch_limit import BatchLimit
from akashic_daemon.schedule.counters import Counters
from akashic_daemon.schedule.events import Started
from akashic_daemon.schedule.fair_queue import FairQueue
from akashic_daemon.schedule.report import log_end
from akashic_daemon.schedule.request import Request, State
from akashic_daemon.schedule.tiering import Tiering

logger = logging.getLogger("akashic.loop")
_SPARE_CELLS = 16
"""Cells kept free for the next tokens when a request is admitted."""
_LEAST_SHARE = 8
"""So many requests of one session may wait in the smallest queue; in others, half of the queue."""


class Admission:
    """The queue of one step loop. `fail` ends a request with an error."""

    def __init__(
        self,
        settings: ScheduleSection,
        counters: Counters,
        tiering: Tiering,
        fail: Callable[[Request, AkashicError], None],
    ) -> None:
        self.waiting = FairQueue()
        self.limit = BatchLimit(settings.max_running)
        self.blocked = False
        """Whether the head of the queue lacks what only an ending request gives back: nothing is worth trying until then."""
        self._settings = settings
        self._counters = counters
        self._tiering = tiering
        self._fail = fail
        self._engine: Engine | None = None
        self._index: RadixIndex | None = None

    def bind(self, engine: Engine | None, index: RadixIndex | None) -> None:
        """Admit to this engine from now on."""
        self._engine, self._index = engine, index
        self.limit.reset()

    def enqueue(self, request: Request) -> None:
        """Let a request wait for its turn, or refuse it."""
        engine, index = self._engine, self._index
        refusal = self._refusal(request, engine)
        if refusal is not None:
            request.emit(refusal)
            log_end(request, refusal.code)
            return
        assert index is not None
        self._counters.requests_total += 1
        self.waiting.add(request)
        if self.waiting.head is request:
            self.blocked = False  # what blocked the queue was another's need
        self._tiering.forget_hint(request.session)
        if len(self.waiting) > 1 or self.blocked:
            self._tiering.look_ahead(index.ops.key(request.routes[0].path))

    def _refusal(self, request: Request, engine: Engine | None) -> AkashicError | None:
        """Say why a request can't wait here, with the counts; None when it can."""
        if engine is None:
            return EngineError("no model is loaded", hint="`akashic model list`")
        waiting, most = len(self.waiting), self._settings.max_queued
        if waiting >= most:
            lacking = f"{waiting} requests are waiting already, of at most {most}"
            return Overloaded(lacking, hint="try again, or raise schedule.max_queued")
        if (of_session := self.waiting.count_of(request)) >= max(_LEAST_SHARE, most // 2):
            lacking = (
                f"{of_session} requests of session {request.session!r} are waiting already, its share of the queue"
            )
            return Overloaded(lacking, hint="wait for their answers, or raise schedule.max_queued")
        visible, cells = min(r.visible_tokens for r in request.routes), engine.capabilities.kv_cells
        if visible + 1 > cells:
            lacking = f"the prompt needs {visible} KV cells and one for the answer; the engine has {cells} in all"
            hint = "shorten it, or raise cache.kv_tokens"
            return PromptTooLong(lacking, hint=hint, n_prompt_tokens=visible, n_ctx=cells)
        return None

    def admit(self, running: list[Request]) -> None:
        """Let as many run as there is room for, the sessions in turn."""
        index = self._index
        assert index is not None
        self._watch_memory(running, index)
        most = min(self.limit.now, index.sequences_total)
        while len(running) < most and not self.blocked:
            if any(r.had_everything for r in running):
                return
            request = self.waiting.head
            if request is None:
                return
            self._choose_route(request, index)
            assert request.outlook is not None
            if request.outlook.cells + _SPARE_CELLS > index.cells_free + index.evictable_cells() and running:
                self.blocked = True
                return
            self.waiting.take()
            try:
                self._begin(request)
                running.append(request)
            except NoSequence as error:
                if running:
                    self.waiting.give_back(request)
                    self.blocked = True
                    return
                self._fail(request, error)
            except AkashicError as error:
                self._fail(request, error)
                if index.failed is not None:
                    raise
            except BaseException:
                self.waiting.give_back(request)  # a bug: whoever meets it ends all requests, and must find this one
                raise

    def _watch_memory(self, running: list[Request], index: RadixIndex) -> None:
        if self.waiting and self.limit.is_due():
            held = index.cells_total - index.cells_free - index.evictable_cells()
            before = self.limit.now
            self.limit.see(held, index.cells_total, len(running))
            if self.limit.now < before:
                share = 100 * held // index.cells_total
                logger.warning("running requests hold %d %% of the KV cells: at most %d run now", share, self.limit.now)

    def _choose_route(self, request: Request, index: RadixIndex) -> None:
        """Take the cheapest way, the first of equals; a request that began keeps to its way."""
        if request.started:
            request.outlook = self._tiering.outlook(request.key)
            request.ahead = request.outlook.computed
            return
        keys = [index.ops.key(route.path) for route in request.routes]
        outlooks = [self._tiering.outlook(key) for key in keys]
        request.costs = [outlook.computed for outlook in outlooks]
        best = min(range(len(keys)), key=request.costs.__getitem__)
        request.route, request.key, request.ahead = request.routes[best], keys[best], request.costs[best]
        request.outlook = outlooks[best]

    def _begin(self, request: Request) -> None:
        assert self._engine is not None
        assert request.outlook is not None
        if request.sampler is None:
            params = request.params
            request.sampler = self._engine.sampler(params)
            if params.repeat_penalty != 1.0 or params.frequency_penalty or params.presence_penalty:
                request.sampler.accept(request.route.path.tokens[-params.penalty_last_tokens :])
        if not request.admitted_s:
            request.timing.queued_s = time.monotonic() - request.created_s
            if request.outlook.too_dear:
                told = f"{request.outlook.too_dear} stored tokens are computed again: by what was measured, loading takes longer"
                request.reuse.notes = [*request.reuse.notes, told]
        request.admitted_s = time.monotonic()
        if not request.had_everything:  # else loading took what computing needs: sequences, or room for whole blocks
            request.promotion = self._tiering.promote(request.key, request.outlook)
        request.outlook = None  # what it names may go from here on
        if request.promotion is not None:
            request.state = State.RELOAD
            return
        self._start(request)

    def reload(self, running: list[Request], *, is_streaming: bool) -> None:
        """Import what has come for requests in state RELOAD; those that have everything begin to compute."""
        index = self._index
        assert index is not None
        for request in [r for r in running if r.promotion is not None]:
            assert request.promotion is not None
            try:
                if not self._tiering.advance(request.promotion, is_streaming=is_streaming):
                    continue
            except NoSequence:
                pass  # what came is used, the rest is computed
            self.end_reload(request)
            request.ahead = index.missing_tokens(request.key)
            try:
                self._start(request)
            except NoSequence as error:
                running.remove(request)
                if not running:
                    self._fail(request, error)
                    continue
                request.state, self.blocked = State.QUEUED, True
                self.waiting.give_back(request)

    def end_reload(self, request: Request) -> None:
        """Close what the tiers were giving back; what came stays in the engine."""
        promotion = request.promotion
        if promotion is None:
            return
        request.promotion = None
        self._tiering.end_promotion(promotion)
        self._counters.reloads_total += 1
        self._counters.reload_s_total += time.monotonic() - request.admitted_s
        for tier, count in promotion.from_tier.items():
            request.from_tier[tier] = request.from_tier.get(tier, 0) + count
        if promotion.missing:
            request.reuse.notes = [*request.reuse.notes, _unavailable(promotion.missing, promotion.no_room)]

    def _start(self, request: Request) -> None:
        index = self._index
        assert index is not None
        request.sequence, reached = index.start(request.key, len(request.key) - 1)
        request.state = State.PREFILL
        if request.started:
            return
        request.started = True
        request.prompt_key_length = len(request.key)
        request.take(request.route, request.ahead)
        request.describe_reuse()
        request.trail = self._tiering.trail(request.session, request.route, request.key)
        first = token_count(request.key[:reached])
        request.reuse.miss = request.explain(request.route, first, request.costs)
        request.emit(Started(str(request.id), request.session, request.model, request.prompt_tokens, request.reuse))


def _unavailable(blocks: int, no_room: bool) -> str:
    if no_room:
        return f"{blocks} stored blocks had no room in the engine and are computed again"
    return f"{blocks} stored blocks could not be read and are computed again"
