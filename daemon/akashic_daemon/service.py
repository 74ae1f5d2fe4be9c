"""Where the parts are joined: what the daemon can do, as one object that the HTTP routes call.

Everything here is async and runs on the event loop; computing happens on the engine thread, SQLite on the store thread.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

from akashic_daemon import __version__
from akashic_daemon.answers.answering import Answering
from akashic_daemon.answers.generation import Generation
from akashic_daemon.answers.turns import Turns
from akashic_daemon.config import Settings
from akashic_daemon.context.policies import PolicyShelf
from akashic_daemon.context.service import ContextService, Parts
from akashic_daemon.engine.host import EngineFactory, ModelHost, configured_engines
from akashic_daemon.errors import AkashicError, NotFound
from akashic_daemon.memory_service.chat import ChatMemory
from akashic_daemon.memory_service.embedding import EmbeddingService
from akashic_daemon.memory_service.own_model import LocalModel, configured
from akashic_daemon.memory_service.service import MemoryService
from akashic_daemon.memory_service.watch import MemoryWatch
from akashic_daemon.model_service import ModelService
from akashic_daemon.paths import Paths, ensure_private_dir
from akashic_daemon.process.facts import code_digest, resident_bytes
from akashic_daemon.process.tcp_port import TcpPort
from akashic_daemon.program.policy import load as load_policy
from akashic_daemon.protocol import PROTOCOL_VERSION, native
from akashic_daemon.protocol.archive import FORMAT, MAGIC, is_archive
from akashic_daemon.protocol.tiers import Hinted, HintRequest, Prefetched, Pruned, PruneRequest
from akashic_daemon.remote.client import Limits, RemoteClient
from akashic_daemon.remote.endpoint import Endpoint
from akashic_daemon.remote.generation import RemoteGeneration
from akashic_daemon.schedule.counters import Counters, merged
from akashic_daemon.schedule.events import (
    Finished,
    GenerationEvent,
    GenerationInput,
)
from akashic_daemon.schedule.histograms import Distributions
from akashic_daemon.schedule.loop import StepLoop
from akashic_daemon.sessions.exporting import Homes, SessionExport
from akashic_daemon.sessions.importing import SessionImport
from akashic_daemon.sessions.responses import ResponseService
from akashic_daemon.sessions.service import SessionService
from akashic_daemon.sessions.trace_keeper import TraceKeeper
from akashic_daemon.sessions.traces import Known
from akashic_daemon.store.check import check
from akashic_daemon.store.database import Database, open_database
from akashic_daemon.store.models import ModelRegistry
from akashic_daemon.store.programs import ProgramStore
from akashic_daemon.store.remembering import RememberingStore
from akashic_daemon.store.responses import ResponseStore
from akashic_daemon.store.sessions import SessionStore
from akashic_daemon.store.thread import StoreThread
from akashic_daemon.store.traces import TraceStore
from akashic_daemon.tier_service.service import TierService
from akashic_daemon.tier_service.upkeep import TierUpkeep
from akashic_daemon.tiers.removal import Gone
from akashic_daemon.trajectory.message import Message
from akashic_daemon.trajectory.volatile import VolatileLines
from akashic_daemon.types import SystemClock

logger = logging.getLogger("akashic.service")


class Service:
    """The daemon's abilities. Every method may raise AkashicError."""

    def __init__(
        self,
        settings: Settings,
        paths: Paths,
        *,
        engine_factory: EngineFactory | None = None,
        remote_client: Callable[[Endpoint, Limits], RemoteClient] = RemoteClient,
    ) -> None:
        self.settings = settings
        self.paths = paths
        self._config = settings.config
        self._counters = Counters()
        self.tiers = TierService(self._config, paths)
        wanted = self.tiers.is_wanted
        self._loop = StepLoop(
            self._config.schedule,
            self._counters,
            tiers=self.tiers.settings if wanted else None,
            mover=self.tiers.mover if wanted else None,
        )
        self._host = ModelHost(self._loop, engine_factory or configured_engines(self._config, paths.weights_digests))
        self._remote_client = remote_client
        self._thread = StoreThread()
        self.embeddings = EmbeddingService()
        local = LocalModel(
            self._ask, self.remove_session, lambda: self._config.memory.compactor_model or self._host.loaded
        )
        compactor, asked = configured(self._config.memory, local)
        self.memory = MemoryService(
            paths, self.embeddings.embedder, compactor=compactor, model=asked, is_idle=self._is_idle
        )
        self.memory_watch = MemoryWatch(self.memory)
        self._volatile = VolatileLines(self._config.cache.volatile_lines)
        self.tcp = TcpPort(self._config.serve)
        self._started_s = time.time()
        self._ids = itertools.count(1)
        self._loading: asyncio.Task[None] | None = None
        self._database: Database | None = None
        self.leaves_threads = False
        """Whether threads that may be in native code didn't end with `stop`; Python must not be finalised under them."""

    # -- life --------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the store and begin loading the default model; returns before the model is loaded."""
        ensure_private_dir(self.paths.store_dir)
        code_digest()  # of the files that are loaded now; after an upgrade others stand there
        self._database = await self._thread.run(lambda: open_database(self.paths.database))
        store = SessionStore(self._database, SystemClock())
        registry = ModelRegistry(self._database)
        self.models = ModelService(self.settings, registry, self._thread, self._host)
        self.sessions = SessionService(store, ProgramStore(self._database), self._thread)
        self.responses = ResponseService(ResponseStore(self._database), self._thread)
        self._keeper = TraceKeeper(TraceStore(self._database), self._thread, self.sessions.book)
        self.generation = Generation(
            self._config, self._loop, self._host, self.models, self.sessions, self._keeper,
            forget=self._forget_late,
        )  # fmt: skip
        limits = Limits(**self._config.remote.model_dump())
        self._remote = RemoteGeneration(
            self.sessions, limits, default_policy=self._config.cache.policy, client=self._remote_client
        )
        self.answering = Answering(self.models, self.generation, self._remote)
        self.chat_memory = ChatMemory(
            self._config.memory, self.memory, self.answering, self.sessions, RememberingStore(self._database),
            self._thread, ready=self._keeper.ready,
        )  # fmt: skip
        self._turns = Turns(self._config, self.answering, self.sessions, self.chat_memory)
        self.upkeep = TierUpkeep(self.tiers, self._loop, self._host, self.generation.traces, self._counters)
        self.context = ContextService(self._context_parts(store))
        self.sessions.find_policy = self.context.parts.shelf.find
        self._homes = Homes(
            self._loop, self._host, self.tiers, self._keeper, self.sessions.book, store,
            ProgramStore(self._database), self._thread,
        )  # fmt: skip
        if self.tiers.is_wanted:
            self.tiers.start()
        self._loop.start()
        self._keeper.begin()
        self.memory.start()
        self.chat_memory.start()
        self._loading = asyncio.create_task(self._load_default())

    async def _load_default(self) -> None:
        try:
            default = await self.models.resolve(None)
            if default.remote is not None:
                self._host.state = native.EngineStatus(model=default.name, state="ready", detail=default.remote.url)
            elif self._host.loaded is None and not self._host.waiting_count:  # nobody has asked for another yet
                await self._host.acquire(default)
                await self._host.release()
            await asyncio.to_thread(load_policy, "none")  # makes the grammar's parser, a tenth of a second
        except AkashicError as error:
            logger.error("the default model can't be loaded: %s", error)
            if self._host.state.state != "failed":
                self._host.state = native.EngineStatus(state="failed", detail=str(error))

    async def stop(self) -> None:
        """Cancel what runs, flush state, free the model; ends within 8 seconds."""
        if self._loading is not None:
            self._loading.cancel()
        await self.chat_memory.stop()
        await self.memory.rest()
        stopped = await asyncio.to_thread(self._loop.stop, 6.0)
        if not stopped:
            logger.error("the engine thread did not end in 6 s; leaving it")
            self.leaves_threads = True
        if self.tiers.is_wanted and not await asyncio.to_thread(self.tiers.stop, 2.5):
            logger.error("the mover did not end in 2.5 s; what it had not written is lost")
            self.leaves_threads = True
        if not await self._host.wait_unused(1.0):
            logger.warning("some answers were not stored: their requests did not end in a second")
        if self._database is not None:
            await self._remote.close()
            await self._thread.settled()
            await self._thread.run(self._database.close)
        self._thread.close()
        await self.memory.close()

    def _ask(self, request: GenerationInput) -> AsyncGenerator[GenerationEvent, None]:
        return self.generation.generate(request)

    def _is_idle(self) -> bool:
        """Whether nobody waits for the engine."""
        return not self._loop.activity()

    async def health(self) -> tuple[bool, str]:
        """Tell if the step loop turns (it answers a ping between two steps), with a sentence on why not."""
        return await self._host.health()

    # -- what it tells -----------------------------------------------------------------------------------------

    def _engine_status(self) -> native.EngineStatus:
        status = self._host.state.model_copy()
        self._loop.fill_status(status)
        return status

    async def status(self) -> native.Status:
        """Say who runs, with what, and how full it is."""
        healthy, detail = await self._host.glance()  # people look while a long step is computed
        activity = [*self._loop.activity(), *self._remote.activity()]
        return native.Status(
            version=__version__,
            code=code_digest(),
            protocol_version=PROTOCOL_VERSION,
            pid=os.getpid(),
            started_at_s=self._started_s,
            uptime_s=time.time() - self._started_s,
            healthy=healthy,
            health_detail=None if healthy and detail == "ok" else detail,
            socket=str(self.paths.socket),
            tcp=self.tcp.url,
            database=str(self.paths.database),
            database_bytes=sum(p.stat().st_size for p in self.paths.store_dir.glob(self.paths.database.name + "*")),
            resident_bytes=resident_bytes(),
            engine=self._engine_status(),
            running=sum(a.state != "queued" for a in activity),
            queued=sum(a.state == "queued" for a in activity),
            sessions=await self.sessions.count(),
            tiers=await self.upkeep.report(),
            warnings=[
                *self._host.warnings,
                *([self._thread.problem] if self._thread.problem else []),
                *self.upkeep.problems(),
                *self.memory.problems(),
            ],
        )

    @property
    def distributions(self) -> Distributions:
        """How the requests' times and sizes are spread since the start."""
        return merged(self._counters, self._remote.counters).spread

    async def stats(self) -> native.Stats:
        """Return a snapshot of the counters."""
        activity = [*self._loop.activity(), *self._remote.activity()]
        stats = native.Stats(
            at_s=time.time(),
            uptime_s=time.time() - self._started_s,
            engine=self._engine_status(),
            activity=activity,
            queued=sum(a.state == "queued" for a in activity),
            tiers=await self.upkeep.report(),
            resident_bytes=resident_bytes(),
            evicted_tokens_total=self._loop.evicted_tokens(),
            remote_requests_total=self._remote.counters.requests_total,
        )
        merged(self._counters, self._remote.counters).fill(stats)
        return stats

    async def verify_store(self, *, fix: bool = False) -> native.StoreReport:
        """Look for damage in both stores, and mend what can be where asked. What is to be stored meanwhile waits."""
        database = self._database
        assert database is not None
        found = await self._thread.run(lambda: check(database, fix=fix))
        left = set(await self._thread.run(lambda: check(database))) if fix and found else set(found)
        findings = [
            native.StoreFinding(kind=f.kind, subject=f.subject, detail=f.detail, is_mended=f not in left) for f in found
        ]
        return native.StoreReport(
            sessions=await self.sessions.count(), findings=[*findings, *await self.upkeep.verify(fix=fix)]
        )

    # -- tiers -------------------------------------------------------------------------------------------------

    async def prune(self, request: PruneRequest) -> Pruned:
        """Remove blocks from the tiers, or say which would go."""
        await self._default_loaded()
        return await self.upkeep.prune(request)

    async def prefetch(self, session: str) -> Prefetched:
        """Bring a session's KV into RAM. Raises NotFound."""
        await self._require_session(session, "prefetching")
        return await self.upkeep.prefetch(session)

    async def hint(self, session: str, request: HintRequest) -> Hinted:
        """Expect a session's next request at a time. Raises NotFound."""
        await self._require_session(session, "hinting at")
        return await self.upkeep.hint(session, request)

    async def _default_loaded(self) -> None:
        """Wait for the default model if it is being loaded: what its tiers have isn't known before."""
        if self._loading is not None:
            await asyncio.wait({self._loading})

    async def _require_session(self, session: str, doing: str) -> None:
        await self._default_loaded()
        await self._keeper.ready()
        if await self.sessions.program(session) is None:
            raise NotFound(f"{doing} session {session!r}: there is none of that name", hint="`akashic session list`")

    # -- text --------------------------------------------------------------------------------------------------

    async def generate(self, request: GenerationInput) -> AsyncGenerator[GenerationEvent, None]:
        """Run one request; closing the iterator cancels it within one step. Errors are raised from the iterator."""
        async with aclosing(self.chat_memory.generate(self._without_volatile(request))) as events:
            async for event in events:
                if isinstance(event, Finished) and request.expect_s is not None and event.reuse.session is not None:
                    self.upkeep.expect(event.reuse.session, request.expect_s)
                yield event

    async def count_tokens(self, request: GenerationInput) -> int:
        """Return the exact number of prompt tokens of a request."""
        return await self.answering.count_tokens(self._without_volatile(request))

    def _without_volatile(self, request: GenerationInput) -> GenerationInput:
        if request.messages is None:
            return request
        messages, removed = self._volatile.without(request.messages)
        if not removed:
            return request
        note = (
            f"{removed} line(s) of system messages that change with each request were left out (cache.volatile_lines)"
        )
        return replace(request, messages=messages, notes=(*request.notes, note))

    def turn(self, session: str, request: native.TurnRequest) -> AsyncGenerator[native.TurnEvent, None]:
        """Run one user turn in a stored session, which keeps the question and what was generated."""
        return self._turns.run(session, request)

    # -- sessions, transcripts and models ----------------------------------------------------------------------

    async def list_sessions(self) -> native.SessionList:
        """Return all sessions, newest first."""
        return await self.sessions.list_sessions()

    async def get_session(self, session: str) -> native.SessionDetail:
        """Return a session with its messages."""
        return await self.sessions.get_session(session)

    async def fork_session(self, session: str, request: native.ForkRequest) -> native.SessionSummary:
        """Branch a session off; prefixes are shared."""
        await self._keeper.ready()
        forked = await self.sessions.fork_session(session, request)
        self._keeper.take_over(session, forked.session, first=forked.messages)
        self.sessions.book.take_over(session, forked.session, forked.messages)
        self.upkeep.share(forked.session)
        return forked

    async def export_session(self, session: str) -> list[Message]:
        """Return the messages of a session in order."""
        return await self.sessions.export_session(session)

    def export_warm(self, session: str) -> AsyncGenerator[bytes, None]:
        """Return a session with its KV as one file, in pieces (`protocol.archive`)."""
        return SessionExport(self._homes).run(session)

    async def remove_session(self, session: str) -> native.RemovedSession:
        """Delete a session and every message that no other session holds, also from the memories of texts and KV."""
        return await self._remove(session, wipe=True)

    async def _remove(self, session: str, *, wipe: bool) -> native.RemovedSession:
        await self._keeper.ready()
        engine = self._loop.engine
        fingerprint = "" if engine is None else engine.model.fingerprint
        known = self.generation.traces.of_session(session, fingerprint)
        if wipe:
            await self.upkeep.will_forget(session)
        try:
            removed = await self.sessions.remove_session(session)
        finally:
            gone = await self._forget_computed(session, known, wipe=wipe)
        return removed.model_copy(
            update={
                "kv_blocks": max(gone.ssd_blocks, gone.ram_blocks),
                "kv_bytes": gone.ssd_bytes + gone.ram_bytes,
                "kv_left": gone.left,
            }
        )

    async def _forget_computed(self, session: str, known: Known | None, *, wipe: bool) -> Gone:
        """Forget what was computed of a removed session, and the texts that are kept to save work."""
        self._host.forget_texts()
        self.chat_memory.forget()
        self.generation.traces.forget(session)
        if known is not None:
            others = self.generation.traces.paths(known.fingerprint)
            await self._host.on_engine_thread(lambda: self._loop.forget(known.trace.path, others))
        return await self.upkeep.forget(session, wipe=wipe)

    async def _forget_late(self, session: str, known: Known | None) -> None:
        """Forget what was computed after a session was removed, by an answer that ran."""
        try:
            await self.upkeep.will_forget(session)
            left = (await self._forget_computed(session, known, wipe=True)).left
        except AkashicError as error:
            left = str(error)
        if left:
            logger.warning("removing the KV of session %s, which was still answered: %s", session, left)

    def import_transcript(
        self,
        path: Path,
        *,
        format: str | None,  # noqa: A002 - the word users know
        name: str | None,
        label: str | None = None,
    ) -> AsyncGenerator[native.ImportEvent, None]:
        """Read a spooled transcript into sessions, with progress; the caller removes the file. Errors call it `label`.

        An exported session is known by its first bytes, and comes with its KV.
        """
        with path.open("rb") as file:
            is_warm = is_archive(file.read(len(MAGIC)))
        if is_warm and format in (None, FORMAT):
            importing = SessionImport(self._homes, self.models, self.sessions.find_policy)
            return importing.run(path, name=name, label=label or "what was sent")
        return self.sessions.import_transcript(path, format_name=format, name=name, label=label)

    async def list_models(self) -> native.ModelList:
        """Return the registered models."""
        return await self.models.list()

    async def get_model(self, name: str) -> native.ModelDetail:
        """Return one model, with its capabilities when it is loaded. Waits for the default one that loads at the start."""
        await self._default_loaded()
        return await self.models.get(name)

    async def add_model(self, request: native.AddModelRequest) -> native.ModelSummary:
        """Register a GGUF. Raises BadModelFile when the file is missing, no GGUF or cut off."""
        return await self.models.add(request)

    async def remove_model(self, name: str) -> native.RemovedModel:
        """Forget a registration; the file stays."""
        return await self.models.remove(name)

    # -- the context of sessions -------------------------------------------------------------------------------

    def _context_parts(self, store: SessionStore) -> Parts:
        assert self._database is not None
        return Parts(
            config=self._config,
            host=self._host,
            models=self.models,
            book=self.sessions.book,
            turns=self.sessions.turns,
            store=store,
            programs=ProgramStore(self._database),
            thread=self._thread,
            shelf=PolicyShelf(self.paths),
            index=lambda: self._loop.index,
            generate=self._turns.go_on,
            remove=self._remove_scratch,
            renamed=self._renamed,
        )

    async def _remove_scratch(self, session: str) -> None:
        """Delete a script's scratch branch; what it wrote goes from the disk when that is rewritten next."""
        await self._remove(session, wipe=False)

    def _renamed(self, old: str, new: str) -> None:
        """Let what is remembered of a session's last prompt go on under another name."""
        self._keeper.take_over(old, new)
        self.sessions.book.forget(old)
        self.generation.traces.forget(old)
        self.upkeep.renamed(old, new)
