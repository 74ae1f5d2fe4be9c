"""Upkeep of memory beside everything else: sealed chunks are reconciled one by one while nobody waits for the engine.

What is done is one transaction a chunk, and a chunk waits until it is done: cancelled or killed at any moment, the next
start goes on with it. Also layouts and logs of results, which no answer waits for, are written from here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

from akashic_daemon.errors import AkashicError, NotFound
from akashic_daemon.memory import chunks, reconcile
from akashic_daemon.memory.answers import Found
from akashic_daemon.memory.compactors import Compactor
from akashic_daemon.memory.extents import Regrouped
from akashic_daemon.memory.memory import Memory

logger = logging.getLogger("akashic.memory")
T = TypeVar("T")
_AT_ONCE = 20
_MOST_RESULTS = 256
_LOOK_AGAIN_S = 0.25
"""So often it looks whether the daemon has nothing else to do."""


class Runs(Protocol):
    """Does something on memory's thread."""

    def __call__(self, work: Callable[[Memory], T], /) -> Awaitable[T]:
        """Return or raise what `work` does."""


class Worker:
    """Reconciles what waits. `is_idle` tells whether the daemon has nothing else to do."""

    def __init__(self, run: Runs, compactor: Compactor, is_idle: Callable[[], bool]) -> None:
        self._run = run
        self.compactor = compactor
        self._is_idle = is_idle
        self._wakes = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self._failed: set[int] = set()
        self._is_over = False
        self.problem: str | None = None
        """Why the newest chunk wasn't reconciled, or not as was asked for."""
        self.model_tokens = 0
        self.reconciled = 0
        self._results: deque[tuple[str, tuple[int, ...]]] = deque(maxlen=_MOST_RESULTS)

    def note_results(self, spans: Sequence[Found]) -> None:
        """Note what a search returned, for layouts: it is written when there is time, and lost by a kill before."""
        found: dict[str, list[int]] = {}
        for span in spans:
            found.setdefault(span.turn.namespace, []).append(span.turn.id)
        self._results.extend((namespace, tuple(ids)) for namespace, ids in found.items() if len(ids) > 1)
        if len(self._results) >= _MOST_RESULTS // 4:
            self.wake()

    async def write_results(self) -> None:
        """Write what searches returned lately."""
        if self._results:
            results = list(self._results)
            self._results.clear()
            await self._guarded(lambda: self._run(lambda memory: memory.store.log_all(results)))

    def wake(self) -> None:
        """Look for work, now or as soon as the daemon is idle; not any more after `stop`."""
        if self._is_over:
            return
        self._wakes.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())
            self._task.add_done_callback(_tell)

    async def stop(self) -> None:
        """End at once; what wasn't done waits for the next start."""
        self._is_over = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def drain(self) -> int:
        """Reconcile all that waits without waiting to be idle; return how many chunks were."""
        self._failed.clear()
        before = self.reconciled
        while await self._next():
            pass
        return self.reconciled - before

    async def _work(self) -> None:
        """Until it is cancelled: what was cut off at the last stop, then whatever comes."""
        await self._guarded(lambda: self._run(_cut_everywhere))
        while await self._guarded(lambda: self._run(_keep_some_whole)):
            pass
        while True:
            await self._wakes.wait()
            self._wakes.clear()
            self._failed.clear()
            more = True
            while more:
                while not self._is_idle():
                    await asyncio.sleep(_LOOK_AGAIN_S)
                more = await self._next()
            await self.write_results()
            await self.regroup()

    async def regroup(self) -> list[Regrouped]:
        """Lay chunks that are found together together, where a namespace has grown enough for it to be worth it."""
        async with self._turn:
            return await self._guarded(lambda: self._run(regroup_all)) or []

    async def _next(self) -> bool:
        """Reconcile the oldest chunk that waits; False when there is none."""
        async with self._turn:
            chunk_id = await self._guarded(lambda: self._run(self._oldest))
            if chunk_id is None:
                return False
            if await self._guarded(lambda: self.reconcile(chunk_id)) is None:
                self._failed.add(chunk_id)
            return True

    def _oldest(self, memory: Memory) -> int | None:
        waiting = memory.store.waiting_chunks(limit=1 + len(self._failed))
        return next((chunk.id for chunk in waiting if chunk.id not in self._failed), None)

    async def reconcile(self, chunk_id: int) -> bool:
        """Reconcile one chunk; True when it was there still. What a model says amiss is said, and done without it."""
        try:
            task = await self._run(lambda memory: reconcile.prepare(memory, chunk_id))
            outcome = await self.compactor.compact(task)
            if isinstance(outcome, reconcile.Rejected):
                self._say(f"chunk c{chunk_id} was compacted without a model: {outcome.reason}")
                self.model_tokens += outcome.tokens
                outcome = task.extractive
            else:
                self.model_tokens += outcome.tokens
                if not self._failed:
                    self.problem = None
            kept = outcome
            await self._run(lambda memory: reconcile.store(memory, task, kept))
        except NotFound:
            return False  # it was forgotten meanwhile
        self.reconciled += 1
        return True

    async def _guarded(self, work: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await work()
        except AkashicError as error:
            self._say(f"memory isn't kept up: {error.message}")
            return None

    def _say(self, problem: str) -> None:
        if self.problem is None:
            logger.warning("%s", problem)
        self.problem = problem


def _tell(task: asyncio.Task[None]) -> None:
    """Log a bug of ours: the next chunk starts upkeep again."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("memory's upkeep ended by a bug", exc_info=error)


def _keep_some_whole(memory: Memory) -> bool:
    """Bring extents in line with the database, some chunks at a time; False when they are.

    A crash, or a disk that was full, may have left a chunk out, or one in that is to be reconciled again.
    """
    if memory.extents is None:
        return False
    for namespace in memory.store.namespaces():
        done = {chunk.id for chunk in memory.store.chunks_of(namespace) if chunk.reconciled_at_s is not None}
        there = memory.extents.chunks(namespace)
        if stale := there - done:
            memory.extents.drop(namespace, stale)
        missing = sorted(done - there)
        for chunk_id in missing[:_AT_ONCE]:
            reconcile.keep_whole(memory, namespace, chunk_id)
        if len(missing) > _AT_ONCE:
            return True
    return False


def regroup_all(memory: Memory) -> list[Regrouped]:
    """Lay the chunks of every namespace anew for which it is due."""
    if memory.extents is None:
        return []
    found = []
    for namespace in memory.store.namespaces():
        if memory.extents.is_due(namespace):
            store = memory.store
            done = memory.extents.regroup(namespace, store.links_of(namespace), store.result_chunks(namespace))
            if done is not None:
                found.append(done)
                logger.info(
                    "memory %s: results touch %.2f extents instead of %.2f; %d bytes were moved",
                    namespace, done.fan_out_after, done.fan_out_before, done.moved_bytes,
                )  # fmt: skip
    return found


def _cut_everywhere(memory: Memory) -> None:
    for namespace in memory.store.namespaces():
        chunks.cut_what_is_full(memory, namespace)
