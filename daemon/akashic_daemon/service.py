"""Where the parts are joined: what the daemon can do, as one object that the HTTP routes call.

Everything here is async and runs on the event loop; computing happens on the engine thread, SQLite on the store thread.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
from array import array
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

from akashic_daemon import __version__
from akashic_daemon.cache.explain import explain_miss
from akashic_daemon.config import Settings
from akashic_daemon.engine.base import Engine, SamplingParams
from akashic_daemon.engine.host import (
    EngineFactory,
    ModelHost,
    llama_cpp_factory,
)
from akashic_daemon.errors import AkashicError, BadRequest, PromptTooLong
from akashic_daemon.model_service import ModelService
from akashic_daemon.paths import Paths, ensure_private_dir
from akashic_daemon.program.active import active_cache
from akashic_daemon.program.path import Path as TokenPath
from akashic_daemon.protocol import PROTOCOL_VERSION, native
from akashic_daemon.schedule.counters import Counters
from akashic_daemon.schedule.events import Finished, GenerationEvent, GenerationInput, Started, TextDelta
from akashic_daemon.schedule.loop import StepLoop
from akashic_daemon.schedule.request import Request
from akashic_daemon.session_service import SessionService
from akashic_daemon.store.check import check
from akashic_daemon.store.database import Database, open_database
from akashic_daemon.store.models import ModelRegistry
from akashic_daemon.store.sessions import SessionStore
from akashic_daemon.store.thread import StoreThread
from akashic_daemon.trajectory.message import Message, Role
from akashic_daemon.trajectory.prompt import Prompt
from akashic_daemon.types import RequestId, SystemClock

logger = logging.getLogger("akashic.service")
_HEALTH_LIMIT_S = 30.0
"""A step may take this long before the loop counts as stuck."""


class Service:
    """The daemon's abilities. Every method may raise AkashicError."""

    def __init__(self, settings: Settings, paths: Paths, *, engine_factory: EngineFactory | None = None) -> None:
        self.settings = settings
        self.paths = paths
        self._config = settings.config
        self._counters = Counters()
        self._loop = StepLoop(self._config.schedule, self._counters)
        self._host = ModelHost(self._loop, engine_factory or llama_cpp_factory(self._config))
        self._thread = StoreThread()
        self._started_s = time.time()
        self._ids = itertools.count(1)
        self._loading: asyncio.Task[None] | None = None
        self._database: Database | None = None

    # -- life --------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the store and begin loading the default model; returns before the model is loaded."""
        ensure_private_dir(self.paths.store_dir)
        self._database = await self._thread.run(lambda: open_database(self.paths.database))
        store = SessionStore(self._database, SystemClock())
        registry = ModelRegistry(self._database)
        self.models = ModelService(self.settings, registry, self._thread, self._host)
        self.sessions = SessionService(store, self._thread)
        self._loop.start()
        self._loading = asyncio.create_task(self._load_default())

    async def _load_default(self) -> None:
        try:
            await self._host.acquire(await self.models.resolve(None))
            await self._host.release()
        except AkashicError as error:
            logger.error("the default model can't be loaded: %s", error)
            if self._host.state.state != "failed":
                self._host.state = native.EngineStatus(state="failed", detail=str(error))

    async def stop(self) -> None:
        """Cancel what runs, flush state, free the model; ends within 8 seconds."""
        if self._loading is not None:
            self._loading.cancel()
        stopped = await asyncio.to_thread(self._loop.stop, 7.0)
        if not stopped:
            logger.error("the engine thread did not end in 7 s; leaving it")
        if not await self._host.wait_unused(1.0):
            logger.warning("some answers were not stored: their requests did not end in a second")
        if self._database is not None:
            await self._thread.run(self._database.close)
        self._thread.close()

    async def health(self) -> tuple[bool, str]:
        """Tell if the step loop turns (it answers a ping between two steps), with a sentence on why not."""
        if self._host.state.state == "loading":
            return True, "loading the model"
        try:
            await asyncio.wait_for(self._host.on_engine_thread(lambda: None), _HEALTH_LIMIT_S)
        except TimeoutError:
            return False, f"the step loop has not answered for {_HEALTH_LIMIT_S:.0f} s"
        return True, "ok"

    # -- what it tells -----------------------------------------------------------------------------------------

    def _engine_status(self) -> native.EngineStatus:
        status = self._host.state.model_copy()
        self._loop.fill_status(status)
        return status

    async def status(self) -> native.Status:
        """Say who runs, with what, and how full it is."""
        healthy, detail = await self.health()
        activity = self._loop.activity()
        serve = self._config.serve
        return native.Status(
            version=__version__,
            protocol_version=PROTOCOL_VERSION,
            pid=os.getpid(),
            started_at_s=self._started_s,
            uptime_s=time.time() - self._started_s,
            healthy=healthy,
            health_detail=None if healthy and detail == "ok" else detail,
            socket=str(self.paths.socket),
            tcp=f"http://{serve.host}:{serve.port}" if serve.port else None,
            database=str(self.paths.database),
            database_bytes=sum(p.stat().st_size for p in self.paths.store_dir.glob(self.paths.database.name + "*")),
            resident_bytes=_resident_bytes(),
            engine=self._engine_status(),
            running=sum(a.state != "queued" for a in activity),
            queued=sum(a.state == "queued" for a in activity),
            sessions=await self.sessions.count(),
            warnings=self._host.warnings,
        )

    async def stats(self) -> native.Stats:
        """Return a snapshot of the counters."""
        activity = self._loop.activity()
        stats = native.Stats(
            at_s=time.time(),
            uptime_s=time.time() - self._started_s,
            engine=self._engine_status(),
            activity=activity,
            queued=sum(a.state == "queued" for a in activity),
            resident_bytes=_resident_bytes(),
            evicted_tokens_total=self._loop.evicted_tokens(),
        )
        self._counters.fill(stats)
        return stats

    async def verify_store(self) -> native.StoreReport:
        """Look for damage in the store; changes nothing. What is to be stored meanwhile waits."""
        database = self._database
        assert database is not None
        found = await self._thread.run(lambda: check(database))
        return native.StoreReport(
            sessions=await self.sessions.count(),
            findings=[native.StoreFinding(kind=f.kind, subject=f.subject, detail=f.detail) for f in found],
        )

    # -- text --------------------------------------------------------------------------------------------------

    async def generate(self, request: GenerationInput) -> AsyncGenerator[GenerationEvent, None]:
        """Run one request; closing the iterator cancels it within one step. Errors are raised from the iterator."""
        _refuse_unbuilt(request)
        engine = await self._host.acquire(await self.models.resolve(request.model))
        try:
            session = request.session
            if request.messages is not None:
                if session is None:
                    session = await self.sessions.book.find_or_name(request.messages)
                await self.sessions.book.load_sampled(request.messages)
            prompt = await asyncio.to_thread(self._lay_out, engine, request)
            async with aclosing(self._run(engine, request, prompt, session, window_moved=False)) as events:
                async for event in events:
                    yield event
        finally:
            await self._host.release()

    async def _run(
        self, engine: Engine, request: GenerationInput, prompt: Prompt, session: str | None, *, window_moved: bool
    ) -> AsyncGenerator[GenerationEvent, None]:
        job, events = self._make_request(engine, request, prompt, session, window_moved=window_moved)
        self._loop.submit(job)
        ended = False
        try:
            while not ended:
                event = await events.get()
                ended = isinstance(event, Finished | AkashicError)
                if isinstance(event, AkashicError):
                    raise event
                if isinstance(event, Finished):
                    await self._record(engine, request, job, session, event)
                yield event
        finally:
            if not ended:
                self._loop.cancel(job.id)
                await asyncio.shield(self._keep_cancelled(engine, request, job, session, events))

    async def _keep_cancelled(
        self,
        engine: Engine,
        request: GenerationInput,
        job: Request,
        session: str | None,
        events: asyncio.Queue[GenerationEvent | AkashicError],
    ) -> None:
        """Wait until a cancelled request has ended, and store what it had said."""
        while True:
            event = await events.get()
            if isinstance(event, AkashicError):
                return
            if isinstance(event, Finished):
                await self._record(engine, request, job, session, event)
                return

    async def _record(
        self, engine: Engine, request: GenerationInput, job: Request, session: str | None, finished: Finished
    ) -> None:
        tokens = job.path.tokens + array("i", job.generated)
        self.sessions.book.remember_tokens(session, tokens[: job.stored + 1])
        if session is None or request.messages is None:
            return
        answer = Message(Role.ASSISTANT, finished.text, event_time_s=time.time()) if finished.text else None
        sampled = [t for t in job.generated if not engine.is_end(t)]
        exact = b"".join(map(engine.token_bytes, sampled)) == finished.text.encode()
        await self.sessions.book.record(session, request.messages, answer, sampled if exact else [], origin="api")

    def _make_request(
        self, engine: Engine, request: GenerationInput, prompt: Prompt, session: str | None, *, window_moved: bool
    ) -> tuple[Request, asyncio.Queue[GenerationEvent | AkashicError]]:
        events: asyncio.Queue[GenerationEvent | AkashicError] = asyncio.Queue()
        running = asyncio.get_running_loop()
        room = engine.model.window_tokens - len(prompt.tokens)
        if room < 1:
            raise PromptTooLong(
                f"the prompt has {len(prompt.tokens)} tokens and the window {engine.model.window_tokens}, answer included",
                hint="shorten the history, or load a model with a longer window",
                n_prompt_tokens=len(prompt.tokens),
                n_ctx=engine.model.window_tokens,
            )
        if not prompt.tokens:
            raise BadRequest("the prompt is empty", hint="send at least one character or message")
        path = TokenPath(prompt.tokens)
        active = active_cache(path)
        earlier = self.sessions.book.last_tokens(session)

        def emit(event: GenerationEvent | AkashicError) -> None:
            running.call_soon_threadsafe(events.put_nowait, event)

        def explain(reused: int) -> native.Miss | None:
            return explain_miss(
                prompt.tokens,
                reused,
                earlier,
                message_at=prompt.message_at,
                window_moved=window_moved,
                to_text=lambda ids: b"".join(map(engine.token_bytes, ids)).decode("utf-8", "replace"),
            )

        job = Request(
            id=RequestId(f"req-{os.getpid():x}-{next(self._ids)}"),
            session=session,
            path=path,
            visible_tokens=active.tokens,
            params=request.sampling,
            budget_tokens=min(request.max_tokens or room, room),
            stop=request.stop,
            emit=emit,
            explain=explain,
            reuse=native.Reuse(
                session=session,
                left_out_messages=prompt.left_out_messages,
                left_out_tokens=prompt.left_out_tokens,
                notes=list(prompt.notes),
            ),
            created_s=time.monotonic(),
            model=engine.model.name,
        )
        return job, events

    def _lay_out(self, engine: Engine, request: GenerationInput) -> Prompt:
        if request.messages is None:
            tokens = array("i", engine.tokenize(request.text or "", special=True))
            info = engine.model
            if info.add_bos and info.bos:
                bos = array("i", engine.tokenize(info.bos, special=True))
                tokens = tokens if tokens[: len(bos)] == bos else bos + tokens
            return Prompt(tokens, array("i", [0] * len(tokens)))
        if not request.messages:
            raise BadRequest("messages is empty", hint="send at least one message")
        return self._host.builder.build(request.messages, tools=request.tools, recall=self.sessions.book.recall)

    async def count_tokens(self, request: GenerationInput) -> int:
        """Return the exact number of prompt tokens of a request."""
        engine = await self._host.acquire(await self.models.resolve(request.model))
        try:
            return len((await asyncio.to_thread(self._lay_out, engine, request)).tokens)
        finally:
            await self._host.release()

    async def turn(self, session: str, request: native.TurnRequest) -> AsyncGenerator[native.TurnEvent, None]:
        """Run one user turn in a stored session; the session keeps the question and what was generated."""
        if request.policy not in (None, "none") or request.edit_reuse == "drop":
            raise BadRequest("policies and edit_reuse=drop are not built yet", hint="leave them out")
        system = request.system if request.system is not None else self._config.chat.system
        messages, window_start = await self.sessions.begin_turn(session, request.prompt, system)
        chat = self._config.chat
        max_tokens = request.max_tokens or chat.max_tokens
        generation = GenerationInput(
            messages=tuple(messages), sampling=_turn_sampling(request, chat.temperature), max_tokens=max_tokens,
            stop=tuple(request.stop), model=request.model, session=session,
        )  # fmt: skip
        started = False
        try:
            async with aclosing(self._run_turn(generation, window_start)) as events:
                async for event in events:
                    started = True
                    yield _as_turn_event(event, session)
        except AkashicError:
            if not started:
                await self.sessions.take_back(session, messages[:-1])
            raise

    async def _run_turn(self, generation: GenerationInput, window_start: int) -> AsyncGenerator[GenerationEvent, None]:
        messages, session, max_tokens = generation.messages, generation.session, generation.max_tokens
        assert messages is not None
        assert session is not None
        assert max_tokens is not None
        engine = await self._host.acquire(await self.models.resolve(generation.model))
        try:
            await self.sessions.book.load_sampled(messages)
            limit = max(engine.model.window_tokens - max_tokens, engine.model.window_tokens // 2)
            prompt = await asyncio.to_thread(
                self._host.builder.fit,
                messages, limit_tokens=limit, first_message=window_start, recall=self.sessions.book.recall,
            )  # fmt: skip
            moved = prompt.first_message > window_start and prompt.left_out_messages > 0
            if moved:
                await self.sessions.set_window_start(session, prompt.first_message)
            async with aclosing(self._run(engine, generation, prompt, session, window_moved=moved)) as events:
                async for event in events:
                    yield event
        finally:
            await self._host.release()

    # -- sessions, transcripts and models ----------------------------------------------------------------------

    async def list_sessions(self) -> native.SessionList:
        """Return all sessions, newest first."""
        return await self.sessions.list_sessions()

    async def get_session(self, session: str) -> native.SessionDetail:
        """Return a session with its messages."""
        return await self.sessions.get_session(session)

    async def fork_session(self, session: str, request: native.ForkRequest) -> native.SessionSummary:
        """Branch a session off; prefixes are shared."""
        return await self.sessions.fork_session(session, request)

    async def export_session(self, session: str) -> list[Message]:
        """Return the messages of a session in order."""
        return await self.sessions.export_session(session)

    async def remove_session(self, session: str) -> native.RemovedSession:
        """Delete a session and every message that no other session holds, also from the memories of texts."""
        try:
            return await self.sessions.remove_session(session)
        finally:
            self._host.forget_texts()

    def import_transcript(
        self,
        path: Path,
        *,
        format: str | None,  # noqa: A002 - the word users know
        name: str | None,
        label: str | None = None,
    ) -> AsyncGenerator[native.ImportEvent, None]:
        """Read a spooled transcript into sessions, with progress; the caller removes the file. Errors call it `label`."""
        return self.sessions.import_transcript(path, format_name=format, name=name, label=label)

    async def list_models(self) -> native.ModelList:
        """Return the registered models."""
        return await self.models.list()

    async def get_model(self, name: str) -> native.ModelDetail:
        """Return one model, with its capabilities when it is loaded. Waits for the default one that loads at the start."""
        if self._loading is not None:
            await asyncio.wait({self._loading})
        return await self.models.get(name)

    async def add_model(self, request: native.AddModelRequest) -> native.ModelSummary:
        """Register a GGUF. Raises BadModelFile when the file is missing, no GGUF or cut off."""
        return await self.models.add(request)

    async def remove_model(self, name: str) -> native.RemovedModel:
        """Forget a registration; the file stays."""
        return await self.models.remove(name)


def _refuse_unbuilt(request: GenerationInput) -> None:
    if request.cache_ops or request.edit_reuse == "drop" or request.policy not in (None, "none"):
        raise BadRequest(
            "cache programs are not built yet: policy, cache_ops and edit_reuse=drop", hint="leave them out"
        )


def _turn_sampling(request: native.TurnRequest, temperature: float) -> SamplingParams:
    base = SamplingParams()
    return SamplingParams(
        temperature=temperature if request.temperature is None else request.temperature,
        top_k=base.top_k if request.top_k is None else request.top_k,
        top_p=base.top_p if request.top_p is None else request.top_p,
        min_p=base.min_p if request.min_p is None else request.min_p,
        seed=request.seed,
    )


def _as_turn_event(event: GenerationEvent, session: str) -> native.TurnEvent:
    if isinstance(event, Started):
        return native.TurnEvent(
            kind="start", session=session, request=event.request, prompt_tokens=event.prompt_tokens, reuse=event.reuse
        )
    if isinstance(event, TextDelta):
        return native.TurnEvent(kind="text", text=event.text)
    if isinstance(event, Finished):
        return native.TurnEvent(
            kind="done", session=session, text=event.text, prompt_tokens=event.prompt_tokens,
            completion_tokens=event.completion_tokens, finish_reason=event.finish_reason,
            reuse=event.reuse, timing=event.timing,
        )  # fmt: skip
    return native.TurnEvent(kind="progress", prefilled_tokens=event.prefilled_tokens, prompt_tokens=event.prompt_tokens)


def _resident_bytes() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
