"""Turns of stored sessions, as `akashic chat` and scripts ask for them: the history is the daemon's, and so is the answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from akashic_daemon.answers.answering import Answering
from akashic_daemon.config import Config
from akashic_daemon.engine.base import SamplingParams
from akashic_daemon.errors import AkashicError
from akashic_daemon.memory_service.chat import ChatMemory
from akashic_daemon.protocol import native
from akashic_daemon.schedule.events import (
    Finished,
    GenerationEvent,
    GenerationInput,
    Started,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
)
from akashic_daemon.sessions.service import SessionService
from akashic_daemon.transcript.content import without_lone_surrogates


class Turns:
    """Runs turns of stored sessions. Every method may raise AkashicError."""

    def __init__(self, config: Config, answering: Answering, sessions: SessionService, memory: ChatMemory) -> None:
        self._config = config
        self._answering = answering
        self._sessions = sessions
        self._memory = memory

    async def run(self, session: str, request: native.TurnRequest) -> AsyncGenerator[native.TurnEvent, None]:
        """Run one user turn in a stored session, which keeps the question and what was generated; turns wait for each other."""
        async with self._sessions.turns.turn(session), aclosing(self._run(session, request)) as events:
            async for event in events:
                yield event

    async def _run(self, session: str, request: native.TurnRequest) -> AsyncGenerator[native.TurnEvent, None]:
        request = request.model_copy(update={"prompt": without_lone_surrogates(request.prompt)})
        system = without_lone_surrogates(request.system if request.system is not None else self._config.chat.system)
        chat = self._config.chat
        max_tokens = request.max_tokens or chat.max_tokens
        scope = self._memory.scope(request.memory, default=self._config.memory.chat)
        recall = None if scope is None else await self._memory.before_turn(session, request, scope, max_tokens)
        before = () if recall is None else recall.messages
        messages, window_start = await self._sessions.begin_turn(session, request.prompt, system, before=before)
        if scope is not None:
            await self._memory.begin(session, scope)
        generation = GenerationInput(
            messages=tuple(messages), sampling=_sampling(request, chat.temperature), max_tokens=max_tokens,
            stop=tuple(request.stop), model=request.model, session=session, policy=request.policy,
            edit_reuse=request.edit_reuse, recalled=None if recall is None else recall.told,
        )  # fmt: skip
        started = False
        try:
            async with aclosing(self._answering.continue_session(generation, window_start)) as events:
                async for event in events:
                    started = True
                    yield _event(event, session)
        except AkashicError:
            if not started:
                await self._sessions.take_back(session, messages, len(messages) - 1 - len(before))
            raise

    async def go_on(self, session: str, request: native.TurnRequest) -> AsyncGenerator[native.TurnEvent, None]:
        """Let the model answer at the end of a stored session, which keeps the answer. Raises NotFound."""
        messages = await self._sessions.export_session(session)
        window_start = await self._sessions.window_start(session)
        chat = self._config.chat
        generation = GenerationInput(
            messages=tuple(messages), sampling=_sampling(request, chat.temperature),
            max_tokens=request.max_tokens or chat.max_tokens, stop=tuple(request.stop), model=request.model,
            session=session, policy=request.policy, edit_reuse=request.edit_reuse,
        )  # fmt: skip
        async with aclosing(self._answering.continue_session(generation, window_start)) as events:
            async for event in events:
                yield _event(event, session)


def _sampling(request: native.TurnRequest, temperature: float) -> SamplingParams:
    """Return how a turn is sampled; `temperature` where it doesn't say."""
    base = SamplingParams()
    return SamplingParams(
        temperature=temperature if request.temperature is None else request.temperature,
        top_k=base.top_k if request.top_k is None else request.top_k,
        top_p=base.top_p if request.top_p is None else request.top_p,
        min_p=base.min_p if request.min_p is None else request.min_p,
        seed=request.seed,
    )


def _event(event: GenerationEvent, session: str) -> native.TurnEvent:
    """Return an event of an answer as the CLI hears it."""
    if isinstance(event, Started):
        return native.TurnEvent(
            kind="start", session=session, request=event.request, prompt_tokens=event.prompt_tokens, reuse=event.reuse
        )
    if isinstance(event, TextDelta):
        return native.TurnEvent(kind="text", text=event.text)
    if isinstance(event, ThinkingDelta):
        return native.TurnEvent(kind="thinking", text=event.text)
    if isinstance(event, ToolCallDelta):
        return native.TurnEvent(kind="text", text=event.arguments)
    if isinstance(event, Finished):
        return native.TurnEvent(
            kind="done", session=session, text=event.text, prompt_tokens=event.prompt_tokens,
            completion_tokens=event.completion_tokens, finish_reason=event.finish_reason,
            reuse=event.reuse, timing=event.timing,
        )  # fmt: skip
    return native.TurnEvent(kind="progress", prefilled_tokens=event.prefilled_tokens, prompt_tokens=event.prompt_tokens)
