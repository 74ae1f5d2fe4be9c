"""A request that is cancelled again while its last step still computes: its model stays until it has ended."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from akashic_daemon.engine.fake import FakeEngine
from fake_service import NEVER, answer, ask, fresh_answer, running_service, user
from long_steps import GatedEngine

DEADLINE_S = 60.0


def test_another_model_is_loaded_only_when_it_has_ended_and_what_it_said_is_kept(home: Path) -> None:
    """What a stream does when its source doesn't end within a second of its client's leaving."""
    held = GatedEngine(end_every=NEVER)

    async def run() -> None:
        def make(name: str, _path: Path) -> FakeEngine:
            return held if name == "a" else FakeEngine(end_every=NEVER)

        async with running_service(home, make, models=("a", "b")) as service:
            first = asyncio.create_task(answer(service, ask(user("hello"), session="s", model="a")))
            assert await asyncio.to_thread(held.begun.acquire, timeout=DEADLINE_S)
            second = asyncio.create_task(answer(service, ask(user("and you?"), model="b")))
            while not service._host.waiting_count:
                await asyncio.sleep(0)
            for _ in range(2):
                first.cancel()
                await asyncio.sleep(0)
            with pytest.raises(asyncio.CancelledError):
                await first
            assert service._host.loaded == "a"
            assert service._host.waiting_count == 1
            held.open()
            said = await second
            assert said.text == fresh_answer([user("and you?")], 20, end_every=NEVER)
            assert service._host.loaded == "b"
            assert service._host._users == 0
            assert [m.content for m in (await service.sessions.stored("s"))[0]][:1] == ["hello"]

    asyncio.run(asyncio.wait_for(run(), 2 * DEADLINE_S))
