"""Who gets the engine when requests for several models wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from akashic_daemon.config import ScheduleSection
from akashic_daemon.engine.fake import FakeEngine
from akashic_daemon.engine.host import KnownModel, ModelHost
from akashic_daemon.errors import ModelError
from akashic_daemon.schedule.counters import Counters
from akashic_daemon.schedule.loop import StepLoop
from akashic_daemon.trajectory.message import Message, Role

A, B, BROKEN = (KnownModel(name, Path(f"/{name}"), 1) for name in ("a", "b", "broken"))
DEADLINE_S = 60.0


def make(name: str, _path: Path) -> FakeEngine:
    if name == "broken":
        raise ModelError("opening the model broken: it is", hint="mend it")
    return FakeEngine()


def with_host(check: Callable[[ModelHost], Awaitable[None]]) -> None:
    async def run() -> None:
        loop = StepLoop(ScheduleSection(), Counters())
        loop.start()
        try:
            await asyncio.wait_for(check(ModelHost(loop, make)), DEADLINE_S)
        finally:
            await asyncio.to_thread(loop.stop, DEADLINE_S)

    asyncio.run(run())


async def use(host: ModelHost, model: KnownModel, served: list[str]) -> None:
    await host.acquire(model)
    served.append(model.name)
    await host.release()


async def queued(host: ModelHost, *models: KnownModel, served: list[str]) -> list[asyncio.Task[None]]:
    """Let requests wait in this order, behind one that is running."""
    tasks = []
    for count, model in enumerate(models, 1):
        tasks.append(asyncio.create_task(use(host, model, served)))
        while host.waiting_count < count:
            await asyncio.sleep(0)
    return tasks


def test_a_request_for_another_model_is_served_before_those_that_came_after_it() -> None:
    async def check(host: ModelHost) -> None:
        served: list[str] = []
        await host.acquire(A)
        tasks = await queued(host, B, A, A, served=served)
        assert served == []
        await host.release()
        await asyncio.gather(*tasks)
        assert served == ["b", "a", "a"]
        assert host.waiting_count == 0

    with_host(check)


def test_requests_for_the_loaded_model_run_together_when_nobody_waits_for_another() -> None:
    async def check(host: ModelHost) -> None:
        for _ in range(3):
            await host.acquire(A)
        assert host.waiting_count == 0

    with_host(check)


def test_a_waiting_request_that_is_cancelled_lets_the_next_through() -> None:
    async def check(host: ModelHost) -> None:
        served: list[str] = []
        await host.acquire(A)
        wants_b, wants_a = await queued(host, B, A, served=served)
        wants_b.cancel()
        await wants_a
        assert served == ["a"]
        assert host.loaded == "a"

    with_host(check)


def test_a_model_that_cannot_be_loaded_does_not_hold_up_the_queue() -> None:
    async def check(host: ModelHost) -> None:
        served: list[str] = []
        await host.acquire(A)
        broken, wants_b = await queued(host, BROKEN, B, served=served)
        await host.release()
        with pytest.raises(ModelError, match="broken"):
            await broken
        await wants_b
        assert served == ["b"]

    with_host(check)


def test_ids_that_the_loaded_model_has_not_are_tokenized_anew() -> None:
    async def check(host: ModelHost) -> None:
        engine = await host.acquire(A)
        messages = [Message(Role.USER, "hi"), Message(Role.ASSISTANT, "yes"), Message(Role.USER, "on")]
        plain = host.builder.build(messages).tokens
        for strange in (engine.model.vocabulary_size, -1):

            def recall(_parent: object, _text: str, first: int = strange) -> list[int]:
                return [first, *b"yes"]

            assert host.builder.build(messages, recall=recall).tokens == plain
        await host.release()

    with_host(check)
