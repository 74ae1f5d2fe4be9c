"""The loaded model as one that a compactor of memory can ask: in the background, leaving no session behind."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any

from akashic_daemon.config import MemorySection
from akashic_daemon.engine.base import SamplingParams
from akashic_daemon.errors import EngineError, NotFound
from akashic_daemon.memory.asking import RemoteModel
from akashic_daemon.memory.compactors import Asked, Compactor, Extractive, ModelCompactor, Reply
from akashic_daemon.memory.retold import EXTRACTIVE
from akashic_daemon.schedule.events import Finished, GenerationEvent, GenerationInput
from akashic_daemon.trajectory.message import Message, Role

SESSION = "memory-upkeep"
"""What its sessions are called while they run, with a number after it."""


class LocalModel:
    """Asks through the daemon's own generation; what was asked and answered is removed afterwards."""

    def __init__(
        self,
        generate: Callable[[GenerationInput], AsyncGenerator[GenerationEvent, None]],
        remove: Callable[[str], Awaitable[object]],
        model: Callable[[], str | None],
    ) -> None:
        self._generate = generate
        self._remove = remove
        self._model = model
        self._numbers = itertools.count(1)

    @property
    def name(self) -> str:
        """The model that it asks now."""
        return self._model() or "the default model"

    async def ask(self, system: str, question: str, schema: Mapping[str, Any], max_tokens: int) -> Reply:
        """Return the answer, held to the schema. Raises what generating raises."""
        session = f"{SESSION}-{next(self._numbers)}"
        request = GenerationInput(
            messages=(Message(Role.SYSTEM, system), Message(Role.USER, question)),
            sampling=SamplingParams(temperature=0.0),
            max_tokens=max_tokens,
            model=self._model(),
            session=session,
            policy="none",
            json_schema=schema,
            priority="background",
        )
        try:
            async with aclosing(self._generate(request)) as events:
                async for event in events:
                    if isinstance(event, Finished):
                        tokens = event.prompt_tokens + event.completion_tokens
                        return Reply(event.text, tokens, event.finish_reason == "length")
        finally:
            with suppress(NotFound):  # it failed before anything of it was stored
                await self._remove(session)
        raise EngineError(f"asking {self.name} about memory: it ended without an answer")


def configured(settings: MemorySection, local: LocalModel) -> tuple[Compactor, Asked | None]:
    """Return the compactor that the settings ask for, and the model that it asks, if any."""
    if settings.compactor == EXTRACTIVE:
        return Extractive(), None
    model: Asked = local
    if settings.compactor != "model":
        model = RemoteModel(settings.compactor, settings.compactor_model)
    return ModelCompactor(model), model
