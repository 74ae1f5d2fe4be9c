"""A step that takes long doesn't keep anybody: who cancels, and who stops the daemon, doesn't wait for its end."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import TypeVar

import httpx
import pytest

from akashic_daemon.engine import host
from akashic_daemon.engine.fake import FakeEngine
from akashic_daemon.errors import Cancelled
from akashic_daemon.paths import find_paths
from akashic_daemon.schedule.events import Finished, GenerationInput, Progress
from akashic_daemon.service import Service
from fake_daemon import DEADLINE_S, daemon
from fake_service import NEVER, answer, ask, fresh_answer, register, running_service, user
from long_steps import GatedEngine, LongStepsEngine

LONG = 200
"""Tokens of a step that never ends by itself."""
WORDS = "a long prompt " * 200
T = TypeVar("T")


def run_with(home: Path, engine: FakeEngine, check: Callable[[Service], T]) -> None:
    async def whole() -> None:
        async with running_service(home, lambda _name, _path: engine) as service:
            await asyncio.wait_for(check(service), DEADLINE_S)  # type: ignore[arg-type]

    asyncio.run(whole())


async def ended(service: Service, request: GenerationInput) -> str:
    """Return how a request ended."""
    try:
        return (await answer(service, request)).finish_reason
    except Cancelled:
        return "cancelled"


def test_a_cancelled_request_ends_in_the_middle_of_its_step_and_the_next_is_answered(home: Path) -> None:
    engine = LongStepsEngine(LONG, kv_cells=1 << 14, window_tokens=1 << 13, end_every=NEVER)

    async def check(service: Service) -> None:
        asking = asyncio.create_task(ended(service, ask(user(WORDS))))
        assert await asyncio.to_thread(engine.begun.acquire, timeout=DEADLINE_S)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert engine.computed == []
        assert (await answer(service, ask(user("short")))).text == fresh_answer([user("short")], 20, end_every=NEVER)

    run_with(home, engine, check)


def test_a_service_that_stops_in_the_middle_of_a_step_tells_its_requests_and_who_comes_later(home: Path) -> None:
    engine = LongStepsEngine(LONG, kv_cells=1 << 14, window_tokens=1 << 13, end_every=NEVER)

    async def check() -> None:
        async with running_service(home, lambda _name, _path: engine) as service:
            asking = [asyncio.create_task(ended(service, ask(user(f"{n} {WORDS}")))) for n in range(3)]
            assert await asyncio.to_thread(engine.begun.acquire, timeout=DEADLINE_S)
        assert await asyncio.gather(*asking) == ["cancelled"] * 3
        assert await ended(service, ask(user("too late"))) == "cancelled"

    asyncio.run(asyncio.wait_for(check(), DEADLINE_S))


def test_a_long_prompt_that_is_cancelled_computes_no_step_more_where_none_can_be_cut_short(home: Path) -> None:
    engine = GatedEngine(kv_cells=1 << 14, window_tokens=1 << 13, end_every=NEVER)

    async def check(service: Service) -> None:
        progress = asyncio.Event()

        async def asked() -> None:
            async with aclosing(service.generate(ask(user(WORDS)))) as events:
                async for event in events:
                    assert not isinstance(event, Finished)
                    if isinstance(event, Progress):
                        progress.set()

        asking = asyncio.create_task(asked())
        engine.may.release()
        await progress.wait()
        assert await asyncio.to_thread(engine.begun.acquire, timeout=DEADLINE_S)
        assert await asyncio.to_thread(engine.begun.acquire, timeout=DEADLINE_S)  # in the second step
        asking.cancel()
        await asyncio.sleep(0)
        engine.may.release()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert len(engine.computed) == 2
        engine.open()

    run_with(home, engine, check)


def test_status_and_health_are_told_in_the_middle_of_a_step_and_say_when_it_takes_too_long(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = GatedEngine(kv_cells=1 << 14, window_tokens=1 << 13, end_every=NEVER)

    async def check(service: Service) -> None:
        monkeypatch.setattr(host, "_PING_S", 0.01)
        assert await service.health() == (True, "ok")
        asking = asyncio.create_task(ended(service, ask(user("short"), max_tokens=2)))
        assert await asyncio.to_thread(engine.begun.acquire, timeout=DEADLINE_S)
        status = await service.status()
        assert (status.healthy, status.running) == (True, 1)
        assert await service.health() == (True, "ok")
        with monkeypatch.context() as impatient:
            impatient.setattr(host, "_STEP_LIMIT_S", 0.0)
            status = await service.status()
            assert not status.healthy
            assert "the step loop has not answered for" in (status.health_detail or "")
            assert (await service.health())[0] is False
        engine.open()
        assert await asking == "length"
        assert (await service.status()).healthy

    run_with(home, engine, check)


def test_a_daemon_that_was_stopped_for_a_minute_in_the_middle_of_a_step_is_healthy_when_it_goes_on(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = GatedEngine(kv_cells=1 << 14, window_tokens=1 << 13, end_every=NEVER)

    async def check(service: Service) -> None:
        monkeypatch.setattr(host, "_PING_S", DEADLINE_S)
        asking = asyncio.create_task(ended(service, ask(user("short"), max_tokens=2)))
        assert await asyncio.to_thread(engine.begun.acquire, timeout=DEADLINE_S)
        service._loop._inbox._looked_s -= 62.0  # what the clock says after SIGCONT
        looked = asyncio.create_task(service.status())
        await asyncio.sleep(0)
        engine.open()
        assert (await looked).healthy
        assert await asking == "length"

    run_with(home, engine, check)


def step_begins(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    assert any("a long step begins" in line for line in process.stderr)


def test_sigterm_in_the_middle_of_a_large_step_ends_the_daemon_within_ten_seconds(home: Path) -> None:
    register(home, ["fake"])
    socket = str(find_paths({"AKASHIC_HOME": str(home)}).socket)

    async def run() -> list[str]:
        transport = httpx.AsyncHTTPTransport(uds=socket)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=DEADLINE_S) as client:
            whole = {"messages": [{"role": "user", "content": WORDS}]}
            asking = [
                asyncio.create_task(client.post("/v1/chat/completions", json={**whole, "stream": s})) for s in (0, 1)
            ]
            await asyncio.to_thread(step_begins, process)
            process.send_signal(signal.SIGTERM)
            return [response.text for response in await asyncio.gather(*asking)]

    with daemon(home, f"--long-steps={LONG}") as process:
        told = asyncio.run(asyncio.wait_for(run(), DEADLINE_S))
        assert process.wait(10) == 0
    assert all('"cancelled"' in text for text in told), told
