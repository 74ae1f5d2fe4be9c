"""Which engine answers a request: the one in this process, or another server's."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from akashic_daemon.answers.generation import Generation
from akashic_daemon.context.planner import Room
from akashic_daemon.model_service import ModelService
from akashic_daemon.remote.generation import RemoteGeneration
from akashic_daemon.schedule.events import GenerationEvent, GenerationInput
from akashic_daemon.trajectory.message import Message, Role


class Answering:
    """Answers requests with whichever model they name. Every method may raise AkashicError."""

    def __init__(self, models: ModelService, local: Generation, remote: RemoteGeneration) -> None:
        self._models = models
        self._local = local
        self._remote = remote

    async def generate(self, request: GenerationInput) -> AsyncGenerator[GenerationEvent, None]:
        """Run one request; closing the iterator cancels it. Errors are raised from the iterator."""
        model = await self._models.resolve(request.model)
        answer = self._local.generate(request) if model.remote is None else self._remote.generate(model, request)
        async with aclosing(answer) as events:
            async for event in events:
                yield event

    async def continue_session(
        self, request: GenerationInput, window_start: int
    ) -> AsyncGenerator[GenerationEvent, None]:
        """Answer in a stored session whose history may be longer than the window; the newest turns are shown then."""
        model = await self._models.resolve(request.model)
        if model.remote is None:
            answer = self._local.continue_session(request, window_start)
        else:
            answer = self._remote.generate(model, request, window_start=window_start)
        async with aclosing(answer) as events:
            async for event in events:
                yield event

    async def count_tokens(self, request: GenerationInput) -> int:
        """Return the exact number of prompt tokens of a request. Raises Unsupported where a server doesn't count."""
        model = await self._models.resolve(request.model)
        if model.remote is None:
            return await self._local.count_tokens(request)
        return await self._remote.count_tokens(model, request)

    async def room(self, request: GenerationInput, window_start: int | None = None) -> Room:
        """Return what a request's prompt leaves of the window; an estimate for a remote model."""
        model = await self._models.resolve(request.model)
        if model.remote is None:
            return await self._local.room(request, window_start)
        return await self._remote.room(model, request, window_start)

    async def count_text(self, text: str, model: str | None) -> int:
        """Return how many tokens a text has by itself; an estimate for a remote model."""
        known = await self._models.resolve(model)
        if known.remote is None:
            return await self._local.count_text(text, model)
        return await self._remote.estimate(known, [Message(Role.USER, text)])
