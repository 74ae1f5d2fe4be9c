"""The step loop: one thread owns the engine, and every step computes a bit of every running request.

A step takes one token of each stream that is being answered, and prompt tokens up to a budget. What is computed enters
the radix index at once, so a request that waits finds what its neighbour has computed; between steps it is copied to the
lower tiers. When cells run short, idle runs are evicted; when that isn't enough, the youngest request of the least
priority goes back to the queue (`admission`) and later begins where it was.

Invariants kept here: 3 (nothing in the index is computed twice), 5 (each miss is explained), 9 (the loop answers pings).
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from akashic_daemon.cache.compaction import Holes
from akashic_daemon.cache.index import Lost, NoRoom, NoSequence, RadixIndex
from akashic_daemon.config import ScheduleSection
from akashic_daemon.engine.base import BatchItem, Engine, Interruptible, SegmentBatch
from akashic_daemon.errors import AkashicError, Cancelled, EngineError, Overloaded
from akashic_daemon.program.path import Path
from akashic_daemon.protocol.native import EngineStatus, SessionActivity
from akashic_daemon.schedule.admission import Admission
from akashic_daemon.schedule.counters import Counters
from akashic_daemon.schedule.fair_queue import WEIGHTS
from akashic_daemon.schedule.guard import Guard, as_ours
from akashic_daemon.schedule.inbox import Inbox, stopping
from akashic_daemon.schedule.prefill_budget import PrefillBudget
from akashic_daemon.schedule.report import activity, fill_status
from akashic_daemon.schedule.request import Request, State
from akashic_daemon.schedule.running import Running
from akashic_daemon.schedule.tiering import Tiering, TierSettings
from akashic_daemon.tiers.mover import Mover
from akashic_daemon.types import RequestId, SequenceId

logger = logging.getLogger("akashic.loop")
T = TypeVar("T")
_COMPACTED_BYTES = 256 << 20
"""More KV than this isn't copied out at once to close holes."""
_PARK_EVERY_STEPS = 16
_RELOAD_PAUSE_S = 0.002


class StepLoop:
    """Runs requests on an engine made by `factory` on the loop's own thread."""

    def __init__(
        self,
        settings: ScheduleSection,
        counters: Counters,
        *,
        tiers: TierSettings | None = None,
        mover: Mover | None = None,
    ) -> None:
        self._settings = settings
        self._counters = counters
        self._inbox = Inbox()
        self._engine: Engine | None = None
        self._index: RadixIndex | None = None
        self._holes = Holes()
        self.tiering = Tiering(tiers, mover, self._wake)
        """Moves KV between the engine and the lower tiers; to be used on the engine thread."""
        self._lives = Running(counters, self.tiering)
        self._running = self._lives.requests
        self._admission = self._lives.admission = Admission(settings, counters, self.tiering, self._lives.end_badly)
        self._prefill_budget = PrefillBudget(settings.prefill_tokens_busy)
        self._last_step_s = 0.0
        self._step_number = 0
        self._deferred_tokens = 0
        """Tokens of this step whose cells are taken, and which the engine computes with the rest of it."""
        self._stopping = False
        self._interrupted = False
        """Whether the running step was told to end early."""
        self._guard = Guard(self._begin_anew, lambda: self._index.failed if self._index is not None else None)
        self._thread = threading.Thread(target=self._run, name="akashic-engine", daemon=True)

    # -- called from any thread --------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Cancel everything, free the engine and end the thread. False when it didn't end in time.

        A step that is computed is cut short where the engine can do that: a busy machine may take half a minute for one.
        """
        self._inbox.put(None)
        self._interrupt()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def call(self, function: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run `function` on the engine thread between two steps and hand `done` what came of it, there.

        A bug in it is handed over too, hence the broad except: it must not end the thread that serves everybody.
        """

        def work() -> None:
            try:
                self._inbox.check_open()
                result: T | BaseException = function()
            except AkashicError as error:
                result = error
            except Exception as error:
                logger.exception("a call on the engine thread failed by a bug")
                result = error
            done(result)

        self._inbox.hand_over(work)

    def submit(self, request: Request) -> None:
        """Queue a request; refusals arrive through its `emit`."""

        def work() -> None:
            try:
                self._inbox.check_open()
            except Cancelled as error:
                request.emit(error)
            else:
                self._admission.enqueue(request)

        self._inbox.hand_over(work)

    def check_open(self) -> None:
        """Raise Cancelled when the thread has ended."""
        self._inbox.check_open()

    def cancel(self, request_id: RequestId) -> None:
        """Stop a request within one step, at once if it computes alone; what it computed stays in the cache."""
        self._inbox.put(lambda: self._mark_cancelled(request_id))
        if [request.id for request in tuple(self._running)] == [request_id]:
            self._interrupt()

    def _interrupt(self) -> None:
        engine = self._engine
        if isinstance(engine, Interruptible):
            self._interrupted = True
            engine.interrupt()

    def step_s(self) -> float:
        """Return for how long the thread has been at its present step or call; 0 while it waits for work."""
        return self._inbox.away_s()

    @property
    def engine(self) -> Engine | None:
        """The loaded engine; only its text methods and descriptions may be used off the thread."""
        return self._engine

    @property
    def busy(self) -> bool:
        """Whether any request runs or waits."""
        return bool(self._running or self._admission.waiting)

    def fill_status(self, status: EngineStatus) -> None:
        """Add what the loop knows; a racy read is good enough for people."""
        if self._engine is not None and self._index is not None:
            fill_status(status, self._engine, self._index)
            status.running_limit = self._admission.limit.now

    def forget(self, path: Path, others: Sequence[Path]) -> None:
        """Evict what only this path holds, and none of the others; call through `call`."""
        if self._index is not None:
            key = self._index.ops.key
            self._index.forget(key(path), map(key, others))

    def activity(self) -> list[SessionActivity]:
        """Describe running and waiting requests."""
        return activity(self._all())

    @property
    def index(self) -> RadixIndex | None:
        """The radix index, to be read on the engine thread; None without a model."""
        return self._index

    def evicted_tokens(self) -> int:
        """Return the tokens evicted since the model was loaded."""
        return self._index.evicted_tokens if self._index else 0

    # -- the engine thread -------------------------------------------------------------------------------------

    def set_engine(self, factory: Callable[[], Engine] | None) -> None:
        """Replace the engine; call through `call`. Raises what the factory raises. Whatever runs or waits still is ended."""
        self._lives.end_all(Cancelled("the model was replaced", hint="send the request again"))
        self._put_away()
        if factory is not None:
            engine = factory()
            self._engine = engine
            index = self._empty_cache(engine)
            self.tiering.attach(engine, index)

    def _put_away(self, *, copy_out: bool = True) -> None:
        engine = self._engine
        if engine is not None:
            self._guard.survive(lambda: self.tiering.detach(copy_out=copy_out))
            self._engine = self._index = None
            self._admission.bind(None, None)
            self._lives.bind(None, None)
            self._guard.survive(engine.close)

    def _run(self) -> None:
        while not self._stopping:
            self._guard.run(lambda: self._drain(None if not self.busy else 0.0))
            if not self._stopping and self.busy:
                self._guard.run(self._step)
        self._guard.run(lambda: self._lives.end_all(stopping()))
        self._running.clear()
        self._admission.waiting.clear()
        self._guard.run(lambda: self.set_engine(None))
        self._inbox.close()

    def _drain(self, wait_s: float | None) -> None:
        """Do what was asked for; without any, wait so long for it (None: as long as it takes), copying meanwhile."""
        while True:
            try:
                work = self._inbox.get_nowait() if wait_s == 0 else self._wait_for_work()
            except queue.Empty:
                return
            if work is None:
                self._stopping = True
                return
            work()
            wait_s = 0.0

    def _wait_for_work(self) -> Callable[[], None] | None:
        """Use the time until somebody asks for something for what the tiers have to do."""
        while True:
            pause_s = self.tiering.idle_work()
            try:
                return self._inbox.get_nowait() if pause_s == 0 else self._inbox.get(pause_s)
            except queue.Empty:
                continue

    def _wake(self) -> None:
        """Let the loop look again: something came from a lower tier."""
        self._inbox.put(lambda: None)

    def _all(self) -> list[Request]:
        return [*self._running, *self._admission.waiting]

    def _mark_cancelled(self, request_id: RequestId) -> None:
        for request in self._all():
            if request.id == request_id:
                request.cancelled = True

    def _step(self) -> None:
        for request in [r for r in self._all() if r.cancelled]:
            self._counters.requests_cancelled_total += 1
            self._lives.finish(request, "cancelled")
        is_streaming = any(r.state is State.DECODE for r in self._running)
        is_crowded = bool(self._admission.waiting) or any(r.state is State.RELOAD for r in self._running)
        self.tiering.between_steps(self._last_step_s, is_streaming=is_streaming, is_crowded=is_crowded)
        self._step_number += 1
        self._close_holes()
        self._admission.admit(self._running)
        self._admission.reload(self._running, is_streaming=is_streaming)
        if self._step_number % _PARK_EVERY_STEPS == 0:  # now those who came hold what they need of idle sessions
            self.tiering.park()
        self._deferred_tokens = 0
        plan = self._plan()
        if not plan:
            self._settle()
            self._wait_for_reload()
            return
        self._compute(plan, is_streaming=is_streaming)

    def _compute(self, plan: list[tuple[Request, BatchItem]], *, is_streaming: bool) -> None:
        assert self._engine is not None
        assert self._index is not None
        if self._index.failed is not None:
            return  # nothing may be computed over cells that may be others than the index says
        items = [item for _, item in plan]
        started_s = time.monotonic()
        try:
            self._engine.decode(items)
        except EngineError as error:
            if self._deferred_tokens:
                self._begin_anew(error, "a step of several pieces")
            elif self._interrupted:
                self._interrupted = False  # nothing was added: whoever goes on is planned again
            else:
                self._survive(error, plan)
            return
        now_s = time.monotonic()
        self._last_step_s = now_s - started_s
        tokens = sum(len(i.tokens) for i in items) + self._deferred_tokens
        self._counters.step(tokens, self._last_step_s)
        streams = sum(1 for r, _ in plan if r.state is State.DECODE)
        self._prefill_budget.observe(streams, tokens - streams, self._last_step_s)
        if not is_streaming:
            self.tiering.observe_prefill(tokens, self._last_step_s)
        for number, (request, item) in enumerate(plan):
            self._lives.account(request, item, number, now_s)

    def _close_holes(self) -> None:
        """Compact the engine's cache when the holes in it cost more than closing them."""
        index, engine = self._index, self._engine
        assert index is not None and engine is not None  # noqa: PT018
        self._holes.see(index.cells_used)
        if not self._holes.pays(index.cells_used):
            return
        if index.cells_used * engine.model.kv_bytes_per_token > _COMPACTED_BYTES:
            return
        started_s = time.monotonic()
        try:
            moved = index.compact()
        except EngineError as error:
            self._begin_anew(error, "compacting the KV cache")
            return
        if moved or not index.cells_used:
            self._holes.closed(moved, time.monotonic() - started_s)
            self._counters.compactions_total += 1

    def _begin_anew(self, error: AkashicError, doing: str, *, is_bug: bool = False) -> None:
        """Empty the cache: something of it isn't what the index says. Who runs computes again, once; after a bug nobody does.

        An engine that can't even do that is put away.
        """
        logger.error("%s failed, so the KV cache is emptied: %s", doing, error)
        engine = self._engine
        self._lives.bind(engine, None)  # the cells of those who run are gone: nothing of them is shared or copied out
        self.tiering.abandon(r.promotion for r in self._running if r.promotion is not None)
        sent_back = self._lives.send_back(error, is_bug=is_bug)
        if engine is None:
            return
        try:
            self._empty_cache(engine)
        except Exception as broken:  # whatever it is, the engine can't be used any more
            logger.exception("the KV cache can't be emptied, so the model is put away; the next request loads it again")
            error = as_ours(broken)
            for request in self._all():
                self._lives.end_badly(request, error)
            self._put_away(copy_out=False)
            return
        for request in sent_back:
            self._lives.trail_anew(request)

    def _settle(self) -> None:
        """Have computed what was deferred for a step that came to nothing."""
        if self._deferred_tokens and isinstance(self._engine, SegmentBatch):
            try:
                self._engine.settle()
            except EngineError as error:
                self._begin_anew(error, "a step of several pieces")

    def _wait_for_reload(self) -> None:
        """With nothing to compute until the disk has read something, sleep until it has."""
        if self._is_reloading():
            try:
                work = self._inbox.get(_RELOAD_PAUSE_S)
            except queue.Empty:
                return
            if work is None:
                self._stopping = True
            else:
                work()

    def _empty_cache(self, engine: Engine) -> RadixIndex:
        limits = engine.capabilities
        for sequence in range(limits.max_sequences):
            engine.release(SequenceId(sequence))
        ops = self._index.ops if self._index is not None else None  # keys of requests that wait speak of them
        index = RadixIndex(engine, cells_total=limits.kv_cells, sequences_total=limits.max_sequences, ops=ops)
        self._index = index
        self._holes = Holes(hole_s=limits.hole_s)
        self._admission.bind(engine, index)
        self._lives.bind(engine, index)
        self.tiering.bind(index)
        return index

    def _survive(self, error: EngineError, plan: list[tuple[Request, BatchItem]]) -> None:
        """Nothing of the batch was added: end those who can't be computed alone either, and go on with the others."""
        logger.error("a step of %d requests failed: %s", len(plan), error)
        assert self._engine is not None
        for request, item in plan:
            if len(plan) > 1:
                try:
                    self._engine.decode([item])
                except EngineError as again:
                    error = again
                else:
                    self._lives.account(request, item, 0, time.monotonic())
                    if self._index is None or self._index.failed is not None:
                        return
                    continue
            self._lives.end_badly(request, error)

    def _plan(self) -> list[tuple[Request, BatchItem]]:
        """Choose what the next step computes and make room for it; preempts when there is none."""
        assert self._index is not None
        while self._running:
            lacking = Overloaded("no sequence is free", hint="raise cache.max_sequences")
            try:
                plan = self._choose()
                needed = sum(len(item.tokens) for _, item in plan)
                if not plan:
                    if self._is_reloading():
                        return []
                    continue  # what ran has ended
            except NoSequence:
                plan, needed = [], 0
            except NoRoom as error:
                plan, needed = [], error.cells
            if plan and self._make_room(needed):
                return plan
            if needed:
                room = f"no room for {needed} more KV cells of {self._index.cells_total}"
                lacking = Overloaded(room, hint="raise cache.kv_tokens")
            if len(self._running) > 1:
                self._preempt(max(self._running, key=lambda r: (-WEIGHTS[r.priority], r.created_s)))
            else:
                self._make_do(self._running[0], lacking)
        return []

    def _is_reloading(self) -> bool:
        return bool(self._running) and all(r.state is State.RELOAD for r in self._running)

    def _make_room(self, cells: int) -> bool:
        assert self._index is not None
        return self._index.make_room(cells)

    def _make_do(self, request: Request, lacking: AkashicError) -> None:
        """Let the only running request begin again with everything for itself; end it when that was tried."""
        assert self._index is not None
        if request.state is State.DECODE:
            self._lives.finish(request, "length")
        elif request.had_everything:
            self._lives.end_badly(request, lacking)
        else:
            request.had_everything = True
            self._preempt(request)
            self._make_room(self._index.cells_total)

    def _choose(self) -> list[tuple[Request, BatchItem]]:
        assert self._index is not None
        plan: list[tuple[Request, BatchItem]] = []
        for request in self._running:
            if request.state is State.DECODE:
                assert request.sequence is not None
                assert request.pending is not None
                start = self._index.next_position(request.sequence)
                plan.append((request, BatchItem(request.sequence, (request.pending,), start, True)))
        budget = self._prefill_budget.tokens(len(plan)) if plan else self._settings.prefill_tokens
        for request in sorted(self._running, key=lambda r: -WEIGHTS[r.priority]):
            if request.state is not State.PREFILL or budget <= 0:
                continue
            assert request.sequence is not None
            try:
                item, budget = self._piece(request, budget)
            except (NoRoom, NoSequence):
                raise
            except Lost as error:
                self._lives.plan_anew(request, error)
                continue
            except AkashicError as error:
                if self._index.failed is not None:
                    raise
                self._lives.end_badly(request, error)  # an operation failed; the others go on
                continue
            plan.append((request, item))
        return plan

    def _piece(self, request: Request, budget: int) -> tuple[BatchItem, int]:
        """Return what a prompt computes in this step, and the budget that is left.

        Where the engine computes in one step what operations lie between, all pieces but the last are handed to it at once.
        """
        assert self._index is not None
        assert request.sequence is not None
        key = request.key
        while True:
            work = self._index.advance(request.sequence, key, len(key) - 1)
            assert work is not None, "the last token is always computed"
            end = min(work.end, work.start + budget)
            item = BatchItem(work.sequence, key[work.start : end], work.position, end == len(key))
            budget -= end - work.start
            if item.logits or budget <= 0 or not self._defer(request, item):
                return item, budget

    def _defer(self, request: Request, item: BatchItem) -> bool:
        """Hand a piece of a prompt to the engine ahead of the step; False when it can't take it."""
        count = len(item.tokens)
        if not isinstance(self._engine, SegmentBatch) or not self._make_room(count):
            return False
        self._engine.defer(item)
        self._deferred_tokens += count
        self._lives.account(request, item, -1, time.monotonic())
        return True

    def _preempt(self, request: Request) -> None:
        """Send a running request back to the head of the queue; its cells become evictable."""
        self._counters.preempted_total += 1
        self._lives.wait_again(request)
        self._admission.blocked = bool(self._running)
        logger.info("request %s waits again: the KV cache is full", request.id)
