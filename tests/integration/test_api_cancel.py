"""Clients of every API that leave at random moments: nothing runs on for them, and no task is left behind."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from akashic_daemon.api.app import create_app
from akashic_daemon.engine.fake import FakeEngine
from akashic_daemon.service import Service
from echo_service import Caller, Message, run
from fake_service import NEVER, running_service

SAID = "go on "
BODIES: dict[str, dict[str, Any]] = {
    "/v1/messages": {"max_tokens": 100_000, "messages": [{"role": "user", "content": SAID}]},
    "/v1/responses": {"max_output_tokens": 100_000, "input": SAID},
    "/v1/completions": {"max_tokens": 100_000, "prompt": [SAID, "x", "y"]},
    "/v1/chat/completions": {"max_tokens": 100_000, "messages": [{"role": "user", "content": SAID}]},
}


class Leaver(Caller):
    """A client that leaves after so many sent messages, or, when nothing is sent, after so many turns of the loop."""

    def __init__(self, service: Service, path: str, body: dict[str, Any], after: int) -> None:
        super().__init__(service, path, [json.dumps(body).encode()])
        self._after = after

    async def send(self, message: Message) -> None:
        await super().send(message)
        if len(self.sent) > self._after:
            self.left.set()

    async def leave_unanswered(self) -> None:
        for _ in range(self._after * 20):
            await asyncio.sleep(0)
        self.left.set()


def _writes_the_store(task: asyncio.Task[Any]) -> bool:
    return "StoreThread" in repr(task.get_coro())


@pytest.mark.parametrize("seed", range(3))
def test_clients_that_leave_at_random_leave_nothing_behind(home: Path, seed: int) -> None:
    dice = random.Random(seed)

    async def check() -> None:
        def make(_name: str, _path: Path) -> FakeEngine:
            return FakeEngine(kv_cells=1 << 20, window_tokens=1 << 18, end_every=NEVER)

        async with running_service(home, make) as service:
            app = create_app(service, token=None)
            before = asyncio.all_tasks()

            async def one() -> None:
                path = dice.choice(sorted(BODIES))
                stream = dice.random() < 0.6
                caller = Leaver(service, path, {**BODIES[path], "stream": stream}, dice.randrange(6))
                asking = asyncio.create_task(app(caller.scope, caller.receive, caller.send))
                if not stream:
                    await caller.leave_unanswered()
                await asking
                assert caller.sent == [] or caller.status in (200, 499)

            await asyncio.gather(*(one() for _ in range(40)))
            assert (await service.stats()).activity == []
            assert asyncio.all_tasks() - before <= {t for t in asyncio.all_tasks() if _writes_the_store(t)}
            done = Caller(service, "/v1/messages", [json.dumps({**BODIES["/v1/messages"], "max_tokens": 3}).encode()])
            await app(done.scope, done.receive, done.send)
            assert json.loads(done.text)["usage"]["output_tokens"] == 3

    run(check)
