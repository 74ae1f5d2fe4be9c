"""Running a request for text: its prompt and context are planned, the step loop answers, and what came of it is kept.

Everything here is async and runs on the event loop; planning runs on a worker thread, computing on the engine thread.
Keeps invariant 5 together with `context.planner` and `cache.explain`: what was left out, dropped or computed is told.
"""

from __future__ import annotations

import asyncio
import json
import time
from array import array
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Any

from akashic_daemon import request_ids
from akashic_daemon.answers.plan import AnswerPlan, plan_answer
from akashic_daemon.answers.record import answer_of, checked_continuation
from akashic_daemon.cache.explain import Before, explain_miss, fates
from akashic_daemon.config import Config
from akashic_daemon.context.layout import label_of
from akashic_daemon.context.planner import Ask, ContextPlanner, Planned, Room, too_long, trace_of
from akashic_daemon.engine.base import Engine, ModelInfo
from akashic_daemon.engine.host import ModelHost
from akashic_daemon.engine.parts import parts_of, template_digest
from akashic_daemon.errors import AkashicError, BadRequest, NotFound, PromptTooLong
from akashic_daemon.model_service import ModelService
from akashic_daemon.program.layout import preamble
from akashic_daemon.program.path import Path
from akashic_daemon.program.route import Route
from akashic_daemon.program.wire import Asked
from akashic_daemon.protocol import native
from akashic_daemon.protocol.context import ExplainedSegment, Explanation
from akashic_daemon.schedule.events import Finished, GenerationEvent, GenerationInput
from akashic_daemon.schedule.loop import StepLoop
from akashic_daemon.schedule.request import Request
from akashic_daemon.sessions.service import SessionService
from akashic_daemon.sessions.trace_keeper import TraceKeeper
from akashic_daemon.sessions.traces import KEPT_KINDS, Known, Meaning, Traces, runs_of
from akashic_daemon.store.programs import SessionProgram
from akashic_daemon.toolcalls.definitions import canonical
from akashic_daemon.trajectory.message import Message, Role
from akashic_daemon.trajectory.prompt import Prompt, tokens_at_least


@dataclass(frozen=True, slots=True)
class _Turn:
    """One request, planned: what is sent to the loop and what is needed to keep its outcome."""

    request: GenerationInput
    session: str | None
    planned: Planned
    prompt: Prompt | None
    before: Before | None
    window_moved: bool
    notes: tuple[str, ...]
    answer: AnswerPlan
    policy: str | None = None
    since_removals: int = 0
    """`SessionBook.removals` when the request came."""


class Generation:
    """Answers requests with the loaded model."""

    def __init__(
        self,
        config: Config,
        loop: StepLoop,
        host: ModelHost,
        models: ModelService,
        sessions: SessionService,
        keeper: TraceKeeper,
        *,
        forget: Callable[[str, Known | None], Awaitable[None]],
    ) -> None:
        """Make it; `forget` drops what was computed of a session that was removed while it was answered."""
        self._config = config
        self._loop = loop
        self._host = host
        self._models = models
        self._sessions = sessions
        self._book = sessions.book
        self._meaning = Meaning(config.cache.volatile_text)
        self._keeper = keeper
        self._forget = forget
        self.traces = keeper.traces

    async def generate(self, request: GenerationInput) -> AsyncGenerator[GenerationEvent, None]:
        """Run one request; closing the iterator cancels it within one step. Errors are raised from the iterator."""
        since = self._book.removals
        engine = await self._host.acquire(await self._models.resolve(request.model))
        try:
            turn = replace(await self._plan(engine, request, self._config.cache.policy), since_removals=since)
            async with aclosing(self._run(engine, turn)) as events:
                async for event in events:
                    yield event
        finally:
            await self._host.release()

    async def continue_session(
        self, request: GenerationInput, window_start: int
    ) -> AsyncGenerator[GenerationEvent, None]:
        """Answer in a stored session whose history may be longer than the window; the newest turns are shown then."""
        since = self._book.removals
        engine = await self._host.acquire(await self._models.resolve(request.model))
        try:
            turn = await self._plan(engine, request, self._config.chat.policy, window_start=window_start)
            turn = replace(turn, since_removals=since)
            async with aclosing(self._run(engine, turn)) as events:
                async for event in events:
                    yield event
        finally:
            await self._host.release()

    async def count_tokens(self, request: GenerationInput) -> int:
        """Return the exact number of prompt tokens of a request."""
        engine = await self._host.acquire(await self._models.resolve(request.model))
        try:
            if request.messages is None:
                return len(await asyncio.to_thread(_as_text, engine, request.text or ""))
            request = await self._as_said(request)
            assert request.messages is not None
            prompt = await asyncio.to_thread(
                self._host.builder.build,
                request.messages,
                tools=request.tools,
                recall=self._book.recall,
                think=request.think,
                continue_final=request.continue_final,
            )
            return len(prompt.tokens)
        finally:
            await self._host.release()

    async def room(self, request: GenerationInput, window_start: int | None = None) -> Room:
        """Return what a request's prompt leaves of the window. window_start: of a session whose history may be longer."""
        engine = await self._host.acquire(await self._models.resolve(request.model))
        try:
            request = await self._as_said(request)
            assert request.messages is not None
            window = engine.model.window_tokens
            program = await self._sessions.program(request.session)
            default = self._config.cache.policy if window_start is None else self._config.chat.policy
            asked = self._sessions.asked(request, request.session, program, default)
            prompt = await asyncio.to_thread(self._prompt, engine, request, asked, window_start)
            first = prompt.first_message if prompt.left_out_messages else 0
            return Room(window, len(prompt.tokens), first)
        finally:
            await self._host.release()

    async def count_text(self, text: str, model: str | None) -> int:
        """Return how many tokens a text has by itself."""
        await self._host.acquire(await self._models.resolve(model))
        try:
            return await asyncio.to_thread(self._host.builder.count, text)
        finally:
            await self._host.release()

    async def _as_said(self, request: GenerationInput) -> GenerationInput:
        """Return a request whose tools and earlier calls are written as they are to be rendered."""
        assert request.messages is not None
        messages = await self._book.as_said(request.messages)
        by_name = self._config.cache.tool_order == "canonical"
        return replace(request, messages=messages, tools=canonical(request.tools, by_name=by_name))

    # -- planning ----------------------------------------------------------------------------------------------

    async def _plan(
        self, engine: Engine, request: GenerationInput, default_policy: str, *, window_start: int | None = None
    ) -> _Turn:
        if request.messages is None:
            return await asyncio.to_thread(_text_turn, engine, request)  # megabytes take seconds
        if not request.messages:
            raise BadRequest("messages is empty", hint="send at least one message")
        request = checked_continuation(request)
        await self._keeper.ready()
        request = await self._as_said(request)
        assert request.messages is not None
        answer = await asyncio.to_thread(plan_answer, engine, self._host.builder, request)
        session = request.session or await self._book.find(request.messages)
        await self._book.load_sampled(request.messages)
        program = await self._sessions.program(session)
        asked = self._sessions.asked(request, session, program, default_policy)
        known = self.traces.of_session(session, engine.model.fingerprint)
        tools, keeps_order = _tools_as_before(request, known, self._drops_edits(request, program))
        messages = request.messages
        request = replace(request, tools=tools)
        prompt = await asyncio.to_thread(self._prompt, engine, request, asked, window_start)
        moved = window_start is not None and prompt.first_message > window_start and prompt.left_out_messages > 0
        if moved and session is not None:
            await self._sessions.set_window_start(session, prompt.first_message)
        ask = self._ask(request, prompt, asked, session, program)
        planner = ContextPlanner(engine.model, engine.capabilities, self.traces, self._meaning)
        planned = await asyncio.to_thread(planner.plan, ask)
        if session is None:
            session = _session_of(planned) or self._book.new_name()
        near, changed = planned.near or known, self._keeper.change_since(session, engine.model)
        before = None
        if changed is not None:
            before = Before(changed[0].trace, changed=changed[1])
        elif near is not None:
            edited = planned.edited
            edits, editable = ((), None) if edited is None else (edited.edits, edited.computed_tokens)
            before = Before(near.trace, edits, editable, tools_reordered=keeps_order is False)
        note = ("the tools came in another order; the earlier one was kept",) if keeps_order else ()
        self._book.remember_places(session, asked.ops, messages)
        policy = str(asked.policy) if asked.policy is not None and asked.policy.rules else None
        request, notes = replace(request, session=session), (*request.notes, *asked.notes, *note, *answer.notes)
        return _Turn(request, session, planned, prompt, before, moved, notes, answer, policy)

    def _drops_edits(self, request: GenerationInput, program: SessionProgram | None) -> bool:
        own = program.edit_reuse if program is not None else None
        return (request.edit_reuse or own or self._config.cache.edit_reuse) == "drop"

    def _prompt(self, engine: Engine, request: GenerationInput, asked: Asked, window_start: int | None) -> Prompt:
        assert request.messages is not None
        builder, recall, window = self._host.builder, self._book.recall, engine.model.window_tokens
        if window_start is None:
            if not asked.ops and (asked.policy is None or not asked.policy.rules):
                over = builder.far_over(request.messages, limit_tokens=window, tools=request.tools)
                if over is not None:
                    raise too_long(over, window, at_least=True)
            return builder.build(
                request.messages,
                tools=request.tools,
                recall=recall,
                think=request.think,
                continue_final=request.continue_final,
            )
        limit = max(window - (request.max_tokens or 0), window // 2)
        if asked.ops or (asked.policy is not None and asked.policy.rules):
            whole = self._whole_if_it_fits(engine, request, asked, limit)
            if whole is not None:
                return whole
        return builder.fit(request.messages, limit_tokens=limit, first_message=window_start, recall=recall)

    def _whole_if_it_fits(self, engine: Engine, request: GenerationInput, asked: Asked, limit: int) -> Prompt | None:
        """Return the whole history when its program leaves no more visible than fits; None when it doesn't."""
        assert request.messages is not None
        if sum(len(m.content) for m in request.messages) > limit * 64:
            return None
        prompt = self._host.builder.build(request.messages, tools=request.tools, recall=self._book.recall)
        planner = ContextPlanner(engine.model, engine.capabilities, Traces(), self._meaning)
        try:
            planned = planner.plan(self._ask(request, prompt, asked, None, None))
        except PromptTooLong:
            return None
        return prompt if min(r.visible_tokens for r in planned.routes) <= limit else None

    def _ask(
        self,
        request: GenerationInput,
        prompt: Prompt,
        asked: Asked,
        session: str | None,
        program: SessionProgram | None,
    ) -> Ask:
        assert request.messages is not None
        messages, tools = request.messages, request.tools
        builder = self._host.builder
        head = builder.bos_tokens
        if (asked.ops or asked.policy) and messages[0].role is Role.USER:
            head += builder.count(preamble(lambda shown: builder.text(shown, tools=tools), messages[0]))
        return Ask(
            messages=messages,
            prompt=prompt,
            tools=tools,
            ops=asked.ops,
            policy=asked.policy,
            policy_since=program.policy_since if program is not None and program.policy else 0,
            drop_edits=self._drops_edits(request, program),
            exact=request.edit_reuse == "exact" and bool(asked.ops),
            session=session,
            max_tokens=request.max_tokens,
            render=lambda index, text: builder.replaced(messages, index, text, tools=tools),
            head_tokens=head,
        )

    # -- running -----------------------------------------------------------------------------------------------

    async def _run(self, engine: Engine, turn: _Turn) -> AsyncGenerator[GenerationEvent, None]:
        job, events = self._make_request(engine, turn)
        self._loop.submit(job)
        ended = False
        try:
            while not ended:
                event = await events.get()
                ended = isinstance(event, Finished | AkashicError)
                if isinstance(event, AkashicError):
                    raise event
                if isinstance(event, Finished):
                    await self._to_the_end(self._record(engine, turn, job, event))
                yield event
        finally:
            if not ended:
                self._loop.cancel(job.id)
                await self._to_the_end(self._keep_cancelled(engine, turn, job, events))

    async def _to_the_end(self, work: Coroutine[Any, Any, None]) -> None:
        """Do what goes on however often this task is cancelled meanwhile; the model stays until it is done."""
        self._host.keep()

        async def kept() -> None:
            try:
                await work
            finally:
                await self._host.release()

        await asyncio.shield(kept())

    async def _keep_cancelled(
        self, engine: Engine, turn: _Turn, job: Request, events: asyncio.Queue[GenerationEvent | AkashicError]
    ) -> None:
        """Wait until a cancelled request has ended, and store what it had said."""
        event: GenerationEvent | AkashicError | None = None
        while not isinstance(event, Finished | AkashicError):
            event = await events.get()
        if isinstance(event, Finished):
            await self._record(engine, turn, job, event)

    async def _record(self, engine: Engine, turn: _Turn, job: Request, finished: Finished) -> None:
        messages, session = turn.request.messages, turn.session
        if session is None or messages is None:
            return
        known = _known(engine.model, turn, job) if job.started else None
        if known is not None:
            self.traces.remember(known)
        said = answer_of(engine, turn.request, turn.prompt, job.generated, finished)
        is_stored = await self._book.record(
            session, said.before, said.answer, said.ids, origin="api", since_removals=turn.since_removals
        )
        if not is_stored:
            await self._forget(session, known)
        if known is None or not is_stored:
            return
        with suppress(NotFound):  # removed since its answer was stored
            await self._sessions.add_explanation(session, _explanation(turn, job, finished))
            self._keeper.write(known, parts_of(engine.model))

    def _make_request(
        self, engine: Engine, turn: _Turn
    ) -> tuple[Request, asyncio.Queue[GenerationEvent | AkashicError]]:
        events: asyncio.Queue[GenerationEvent | AkashicError] = asyncio.Queue()
        running = asyncio.get_running_loop()
        request, planned, prompt = turn.request, turn.planned, turn.prompt
        window = engine.model.window_tokens
        prompt_tokens = len(planned.routes[0].path.tokens) if prompt is None else len(prompt.tokens)
        if prompt_tokens == 0:
            raise BadRequest("the prompt is empty", hint="send at least one character or message")

        def emit(event: GenerationEvent | AkashicError) -> None:
            running.call_soon_threadsafe(events.put_nowait, event)

        def to_text(ids: Sequence[int]) -> str:
            return b"".join(map(engine.token_bytes, ids)).decode("utf-8", "replace")

        def explain(route: Route, first: int, costs: Sequence[int]) -> native.Miss | None:
            return explain_miss(
                route, first, turn.before, prompt_tokens=prompt_tokens, window_moved=turn.window_moved, to_text=to_text
            )

        compiled = planned.compiled
        job = Request(
            id=request_ids.next_id(),
            session=turn.session,
            routes=planned.routes,
            prompt_tokens=prompt_tokens,
            window_tokens=window,
            params=turn.answer.sampling,
            budget_tokens=request.max_tokens or window,
            stop=request.stop,
            emit=emit,
            explain=explain,
            reuse=native.Reuse(
                session=turn.session,
                left_out_messages=0 if prompt is None else prompt.left_out_messages,
                left_out_tokens=0 if prompt is None else prompt.left_out_tokens,
                drop_skipped_tokens=0 if compiled is None else compiled.skipped_tokens,
                policy=turn.policy,
                memory=request.recalled,
                notes=[*(() if prompt is None else prompt.notes), *turn.notes],
            ),
            created_s=time.monotonic(),
            model=engine.model.name,
            priority=request.priority,
            form=turn.answer.form,
            marks=turn.answer.marks,
            holds_grammar=turn.answer.holds_grammar,
            thinking=turn.answer.thinking,
            thoughts=turn.answer.thoughts,
        )
        return job, events


def _as_text(engine: Engine, text: str) -> array[int]:
    tokens = array("i", engine.tokenize(text, special=True))
    info = engine.model
    if info.add_bos and info.bos:
        bos = array("i", engine.tokenize(info.bos, special=True))
        return tokens if tokens[: len(bos)] == bos else bos + tokens
    return tokens


def _text_turn(engine: Engine, request: GenerationInput) -> _Turn:
    """Plan a completion of bare text, which has neither messages nor a session's history."""
    text, window = request.text or "", engine.model.window_tokens
    over = tokens_at_least(lambda piece: engine.tokenize(piece, special=True), text, window)
    if over is not None:
        raise too_long(over, window, at_least=True)
    tokens = _as_text(engine, text)
    if len(tokens) >= window:
        raise too_long(len(tokens), window)
    route = Route.of("plain", Path(tokens), array("i", [0] * len(tokens)))
    planned, answer = Planned((route,), ()), AnswerPlan(request.sampling)
    return _Turn(request, request.session, planned, None, None, False, (), answer)


def _tools_as_before(
    request: GenerationInput, known: Known | None, keep_order: bool
) -> tuple[tuple[Mapping[str, Any], ...], bool | None]:
    """Return the tools, in the order of the session's last prompt if they are the same ones and edits may be kept.

    And whether that order was kept; None when the request has no other.
    """
    if known is None or len(known.tools) != len(request.tools):
        return request.tools, None
    if _as_json(known.tools) == _as_json(request.tools):
        return known.tools, None  # equal, though their keys may stand in another order
    if sorted(map(repr, known.tools)) != sorted(map(repr, request.tools)):
        return request.tools, None
    return (known.tools if keep_order else request.tools), keep_order


def _as_json(tools: tuple[Mapping[str, Any], ...]) -> str:
    return json.dumps(tools, sort_keys=True)


def _session_of(planned: Planned) -> str | None:
    """Return the session whose history the prompt edits, if it is mostly the same."""
    if planned.near is None or planned.edited is None:
        return None
    total = planned.edited.kept_tokens + planned.edited.computed_tokens
    same = planned.edited.kept_tokens * 2 > total and len(planned.near.messages) > 2
    return planned.near.session if same else None


def _known(model: ModelInfo, turn: _Turn, job: Request) -> Known:
    """Return what stands computed after a request of a session."""
    messages = turn.request.messages or ()
    answered, route = job.generated[: job.stored + 1], job.route
    trace = trace_of(route, answered, len(messages))
    runs = runs_of(route.owners + array("i", [len(messages)] * len(answered)))
    shown = _as_shown(turn.planned, route, messages)
    return Known(
        turn.session, model.name, model.fingerprint, trace, shown, turn.request.tools, turn.planned.altered, runs,
        template_digest(model),
    )  # fmt: skip


def _as_shown(planned: Planned, route: Route, messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return the messages as they stand in the cache: where an older text was kept, the older one."""
    shown = list(messages)
    for edit in route.edits:
        if edit.kind in KEPT_KINDS and planned.near is not None and edit.old is not None and edit.new is not None:
            shown[edit.new] = planned.near.messages[edit.old]
    return tuple(shown)


def _explanation(turn: _Turn, job: Request, finished: Finished) -> Explanation:
    messages = turn.request.messages or ()
    segments = []
    for fate in fates(job.route, job.computed_ranges):
        message = messages[fate.message] if fate.message is not None and fate.message < len(messages) else None
        segments.append(
            ExplainedSegment(
                message=fate.message if message is not None else None,
                role=message.role.value if message is not None else ("gone" if fate.message is None else "answer"),
                label="" if message is None else label_of(message),
                tokens=fate.tokens, reused=fate.reused, moved=fate.moved, dropped=fate.dropped, computed=fate.computed,
            )
        )  # fmt: skip
    return Explanation(
        session=turn.session or "",
        at_s=time.time(),
        model=job.model,
        plan=job.route.kind,
        prompt_tokens=finished.prompt_tokens,
        computed_tokens=finished.reuse.computed_tokens,
        reused_tokens=finished.reuse.reused_tokens,
        dropped_tokens=finished.reuse.dropped_tokens,
        reposed_tokens=finished.reuse.reposed_tokens,
        miss=finished.reuse.miss,
        notes=finished.reuse.notes,
        segments=segments,
    )
