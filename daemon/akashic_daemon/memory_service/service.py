"""Long-term memory for the rest of the daemon: async, on a store thread of its own, opened when it is first used.

What only asks makes no database where there is none. A home that never used memory has no file and no thread of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from akashic_daemon.errors import AkashicError, BadRequest, StoreError
from akashic_daemon.memory import cards, chunks, ingest, recall, transfer
from akashic_daemon.memory.answers import (
    ChunkCard,
    ExtentView,
    Forgetting,
    Found,
    History,
    MemoryStats,
    Recalled,
    Remembered,
    Selector,
    parse_record,
)
from akashic_daemon.memory.compactors import Asked, Compactor, Extractive
from akashic_daemon.memory.embedder import Embedder
from akashic_daemon.memory.extents import open_extents
from akashic_daemon.memory.memory import Memory, Said
from akashic_daemon.memory.rerank import Reranked, rerank
from akashic_daemon.memory.selection import select
from akashic_daemon.memory.worker import Worker
from akashic_daemon.paths import Paths, ensure_private_dir
from akashic_daemon.store.memory.marks import WatchMark
from akashic_daemon.store.memory.rows import Chunk, Forgotten, Relation
from akashic_daemon.store.memory.store import open_memory_store
from akashic_daemon.store.thread import StoreThread
from akashic_daemon.types import Clock, SystemClock

logger = logging.getLogger("akashic.memory")
T = TypeVar("T")

BATCH_TURNS = 500
"""So many turns are stored in one go on the thread; searches go between two."""
RECALL_CANDIDATES = 64


class MemoryService:
    """What the daemon remembers. Every method may raise AkashicError.

    Ids are written t12 (turn), c3 (chunk), r5 (record). Namespaces: `user`, `project:<name>`, `session:<name>`.
    """

    def __init__(
        self,
        paths: Paths,
        embedder: Callable[[], Awaitable[Embedder]],
        *,
        clock: Clock | None = None,
        compactor: Compactor | None = None,
        model: Asked | None = None,
        is_idle: Callable[[], bool] = lambda: True,
    ) -> None:
        self._paths = paths
        self._embedder = embedder
        self._clock = clock or SystemClock()
        self._model = model
        self._thread = StoreThread()
        self._opening = asyncio.Lock()
        self._memory: Memory | None = None
        self._extents_problem: str | None = None
        self._feeding = 0
        self.worker = Worker(self._run, compactor or Extractive(), lambda: not self._feeding and is_idle())

    # -- life --------------------------------------------------------------------------------------------------

    @property
    def is_used(self) -> bool:
        """Whether there is anything of it: a database on the disk."""
        return self._memory is not None or self._paths.memory_database.exists()

    def start(self) -> None:
        """Go on with the upkeep of what there is; without any of it nothing is opened."""
        if self.is_used:
            self.worker.wake()

    async def rest(self) -> None:
        """Stop upkeep, which may be asking the model; what wasn't done waits for the next start."""
        await self.worker.stop()

    async def close(self) -> None:
        """Stop upkeep and close the database."""
        await self.worker.stop()
        if self._memory is not None:
            await self.worker.write_results()
        async with self._opening:
            if self._memory is not None:
                await self._thread.run(partial(_close, self._memory))
                self._memory = None
            self._thread.close()

    async def _run(self, work: Callable[[Memory], T]) -> T:
        """Do something on memory's thread, opening memory the first time."""
        async with self._opening:
            if self._memory is None:
                embedder = await self._embedder()
                self._memory = await self._thread.run(lambda: self._open(embedder))
        memory = self._memory
        return await self._thread.run(lambda: work(memory))

    def _open(self, embedder: Embedder) -> Memory:
        ensure_private_dir(self._paths.store_dir)
        memory = Memory(open_memory_store(self._paths.memory_database, self._clock), embedder)
        try:
            memory.extents = open_extents(self._paths.memory_extents, self._clock)
        except AkashicError as error:
            # All of it stands in the database: only the layout on the disk is missing.
            self._extents_problem = f"chunks of memory don't stand in extents: {error.message}"
            logger.warning("%s", self._extents_problem)
        return memory

    # -- in ----------------------------------------------------------------------------------------------------

    async def add(
        self, namespace: str, turns: Sequence[Said], *, session: str | None = None, source: str = ""
    ) -> Remembered:
        """Remember messages in the order they were said, once each. Recalled text in them is left out.

        session: the conversation they are from; source: else a name of where they came from, "added" when neither is
        given.
        """
        name = session or source or "added"
        turn_ids: list[int] = []
        new_ids: list[int] = []
        recalled = 0
        for start in range(0, len(turns), BATCH_TURNS):
            batch = turns[start : start + BATCH_TURNS]
            done = await self._run(partial(ingest.remember, namespace=namespace, source=name, said=batch))
            turn_ids += done.turn_ids
            new_ids += done.new_ids
            recalled += done.recalled
        if new_ids:
            self.worker.wake()
        return Remembered(tuple(turn_ids), tuple(new_ids), recalled)

    @contextmanager
    def feeding(self) -> Iterator[None]:
        """Let upkeep wait while much comes in: both are done on the one thread, and what is written can't wait."""
        self._feeding += 1
        try:
            yield
        finally:
            self._feeding -= 1

    # -- out ---------------------------------------------------------------------------------------------------

    async def search(
        self,
        query: str,
        *,
        namespaces: Sequence[str] | None = None,
        limit: int = 20,
        budget_tokens: int | None = None,
        now: float | None = None,
        explain: bool = False,
    ) -> list[Found]:
        """Return the turns that fit a question best, the best first; of all namespaces unless some are named.

        budget_tokens: what doesn't fit it is passed over. now: what was said later isn't found. explain: with the parts
        of each score.
        """
        if not self.is_used:
            return []
        found = await self._run(
            lambda memory: recall.search(
                memory, query, namespaces=_spaces(memory, namespaces), limit=limit, budget_tokens=budget_tokens,
                now_s=now, explain=explain,
            )
        )  # fmt: skip
        self.worker.note_results(found)
        return found

    async def unknown(self, namespaces: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return which of the namespaces don't exist, and, if any, all that do."""
        known = list(await self._run(lambda memory: memory.store.namespaces())) if self.is_used else []
        missing = [name for name in namespaces if name not in known]
        return missing, known if missing else []

    async def rerank(self, query: str, found: Sequence[Found]) -> Reranked:
        """Let the model that compacts memory say which of the first turns come first. Raises BadRequest without one."""
        if self._model is None:
            raise BadRequest(
                "letting a model rank what memory found: no model is set for memory",
                hint='set memory.compactor to "model" or a server\'s URL',
            )
        reranked = await rerank(self._model, query, found)
        self.worker.model_tokens += reranked.tokens
        return reranked

    async def recall(
        self,
        query: str,
        *,
        namespaces: Sequence[str] | None = None,
        budget_tokens: int = recall.BUDGET_TOKENS,
        now: float | None = None,
        apart_from: Sequence[str] = (),
    ) -> Recalled:
        """Return marked text to put before a question, within a budget; empty when nothing is to the point.

        apart_from: texts that stand before the question anyway.
        """
        if not self.is_used:
            return Recalled("", (), 0)
        recalled = await self._run(
            lambda memory: recall.recall(
                memory, query, namespaces=_spaces(memory, namespaces), budget_tokens=budget_tokens, now_s=now,
                limit=RECALL_CANDIDATES, apart_from=apart_from,
            )
        )  # fmt: skip
        self.worker.note_results(recalled.found)
        return recalled

    # -- what there is -----------------------------------------------------------------------------------------

    async def chunks(self, *, namespaces: Sequence[str] | None = None, session: str | None = None) -> list[Chunk]:
        """Return the chunks in order, those of a session only when one is named. Raises NotFound for a namespace."""
        if not self.is_used:
            return []
        return await self._run(lambda memory: cards.chunks(memory, _spaces(memory, namespaces), session))

    async def chunk(self, id: int) -> ChunkCard:  # noqa: A002 - the word users know
        """Return all that is known of a chunk. Raises NotFound."""
        return await self._run(lambda memory: cards.card(memory, id))

    async def extents(self, *, namespaces: Sequence[str] | None = None) -> list[ExtentView]:
        """Return which chunks lie in which extent. Chunks that wait, and small ones, are in none."""
        if not self.is_used:
            return []
        return await self._run(lambda memory: cards.extents(memory, _spaces(memory, namespaces)))

    async def history(self, id: str) -> History:  # noqa: A002 - the word users know
        """Return where a turn, a chunk or a record comes from, and how records stand. Raises NotFound, BadRequest."""
        return await self._run(lambda memory: cards.history(memory, id))

    async def stats(self) -> MemoryStats:
        """Return figures."""
        if not self.is_used:
            return MemoryStats()
        return await self._run(
            lambda memory: MemoryStats(
                tuple(cards.stats(memory)), memory.store.size_bytes(), memory.index_bytes, self.worker.compactor.name,
                self.worker.model_tokens, self.problems(), *cards.extent_figures(memory),
            )
        )  # fmt: skip

    def problems(self) -> tuple[str, ...]:
        """Say what of memory's upkeep doesn't work, a sentence each."""
        return tuple(problem for problem in (self._extents_problem, self.worker.problem) if problem is not None)

    # -- upkeep ------------------------------------------------------------------------------------------------

    async def forget(self, selector: Selector, *, dry_run: bool = True) -> Forgetting:
        """Remove what a selector means with all that was derived from it, or say what would go.

        When it returns no file of memory has the text. Raises NotFound for an id that doesn't exist, StoreError when
        there are copies that can't be reached: then nothing is forgotten.
        """

        def work(memory: Memory) -> Forgetting:
            if not dry_run:
                self._check_reachable(memory)
            ids = select(memory, selector)
            turns = tuple(memory.store.turns(ids).values())
            gone = memory.plan_forgetting(ids) if dry_run else memory.forget(ids)
            return Forgetting(gone, turns, not dry_run)

        done = await self._run(work)
        if done.gone.changed_chunk_ids and not dry_run:
            self.worker.wake()
        return done

    async def take_back(self, added: Remembered) -> None:
        """Forget what was new of what was added, as far as it is there still. Raises StoreError as `forget`."""

        def work(memory: Memory) -> Forgotten:
            self._check_reachable(memory)
            return memory.forget(added.new_ids)

        if added.new_ids and (await self._run(work)).changed_chunk_ids:
            self.worker.wake()

    def _check_reachable(self, memory: Memory) -> None:
        if memory.extents is None:
            raise StoreError(
                f"forgetting: nothing was forgotten, because {self._extents_problem}",
                hint=f"remove the folder {self._paths.memory_extents} and restart the daemon: it is made anew",
            )

    async def seal(self, namespace: str) -> None:
        """Let a namespace's open chunk be reconciled although it isn't full: nothing more is expected there soon.

        Raises NotFound.
        """
        await self._run(lambda memory: chunks.seal(memory, namespace))
        self.worker.wake()

    async def keep_both(self, newer: str, older: str) -> None:
        """Take back that a record supersedes another: both are current again. Raises NotFound, BadRequest."""
        first, second = parse_record(newer), parse_record(older)
        await self._run(lambda memory: memory.store.unrelate(first, second, Relation.SUPERSEDES))

    async def compact(self) -> MemoryStats:
        """Reconcile now all that waits for it, lay chunks anew where it is due, and give freed pages back to the disk."""
        await self.worker.drain()
        await self.worker.write_results()
        await self.worker.regroup()
        await self._run(lambda memory: memory.store.shrink())
        return await self.stats()

    async def export(self, *, namespaces: Sequence[str] | None = None) -> AsyncGenerator[str, None]:
        """Give every turn as a line of JSON, without its end. What is added meanwhile may be missing."""
        if not self.is_used:
            return
        lines = await self._run(lambda memory: transfer.exported(memory, namespaces))
        while page := await self._run(lambda _: [line for line, _n in zip(lines, range(BATCH_TURNS), strict=False)]):
            for line in page:
                yield line

    async def import_(self, lines: AsyncIterable[str]) -> Remembered:
        """Take in what `export` gave. Raises TranscriptError naming the line; what stood before it is in."""
        turn_ids: list[int] = []
        new_ids: list[int] = []
        batch: list[transfer.Line] = []

        async def store() -> None:
            if not batch:
                return
            added = await self._run(partial(transfer.import_lines, lines=tuple(batch)))
            turn_ids.extend(added.turn_ids)
            new_ids.extend(added.new_ids)
            batch.clear()

        number = 0
        try:
            async for text in lines:
                number += 1
                if text.strip():
                    batch.append(transfer.read_line(text, number))
                if len(batch) >= BATCH_TURNS:
                    await store()
        finally:
            await store()
            if new_ids:
                self.worker.wake()
        return Remembered(tuple(turn_ids), tuple(new_ids))

    # -- logs that are followed --------------------------------------------------------------------------------

    async def watch_marks(self, namespace: str) -> list[WatchMark]:
        """Return how far the logs were read that are followed into a namespace."""
        return await self._run(lambda memory: memory.store.watch_marks(namespace))

    async def put_watch_mark(self, namespace: str, mark: WatchMark) -> None:
        """Keep how far a log was read; what stands before the mark is to be in already."""
        await self._run(lambda memory: memory.store.put_watch_mark(namespace, mark))

    async def drop_watch_mark(self, namespace: str, mark: WatchMark) -> None:
        """Forget a log that is gone."""
        await self._run(lambda memory: memory.store.drop_watch_mark(namespace, mark))


def _close(memory: Memory) -> None:
    if memory.extents is not None:
        memory.extents.close()
    memory.store.close()


def _spaces(memory: Memory, namespaces: Sequence[str] | None) -> Sequence[str]:
    return list(memory.store.namespaces()) if namespaces is None else namespaces
