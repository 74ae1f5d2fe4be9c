"""Many clients with a secret each on few sequences, who leave at random, over restarts: no one's words reach another.

Each token of the fake engine depends on all that it saw, so whatever of another's KV is seen changes the answer; and what
is stored is searched for others' secrets.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import aclosing
from pathlib import Path

from akashic_daemon.engine.fake import FakeEngine
from akashic_daemon.errors import Overloaded
from akashic_daemon.schedule.events import Finished, GenerationInput, Started, TextDelta
from akashic_daemon.service import Service
from akashic_daemon.trajectory.message import Message, Role
from fake_service import assistant, fresh_answer, running_service, user
from tiers_service import TIERS

FLAGS = {**TIERS, "schedule.max_running": 4, "schedule.prefill_tokens": 64}
SHARED = Message(Role.SYSTEM, "Keep what you are told to yourself. ")
_MOST_MESSAGES = 5


class Client:
    """One conversation; `heard` counts what happened in it."""

    def __init__(self, number: int, seed: int) -> None:
        self.number, self.chance = number, random.Random(seed * 1000 + number)
        self.secret = f"canary{number:03d}{self.chance.randrange(10**6):06d}"
        self.session = f"client-{number}" if number % 3 else None
        self.history: list[Message] = [SHARED] if number % 2 else []
        self.heard: Counter[str] = Counter()

    async def live(self, service: Service, turns: int) -> None:
        """Ask so many times."""
        for _ in range(turns):
            if len(self.history) > _MOST_MESSAGES:
                del self.history[1 : len(self.history) - 2]
            words = "".join(self.chance.choice("abc ") for _ in range(self.chance.randrange(20)))
            asked = [*self.history, user(f"{self.secret} {words}")]
            most = self.chance.randint(1, 12)
            request = GenerationInput(
                messages=tuple(asked), max_tokens=most, session=self.session,
                priority=self.chance.choice(("interactive", "normal", "normal", "background")),
            )  # fmt: skip
            try:
                said = await self._ask(service, request, leaves=self.chance.random() < 0.3)
            except Overloaded:
                self.heard["refused"] += 1
                continue
            if said is not None:
                assert said == fresh_answer(asked, most), f"{self.secret} heard what it should not"
                self.history = [*asked, assistant(said or "-")]
                self.heard["answered"] += 1

    async def _ask(self, service: Service, request: GenerationInput, *, leaves: bool) -> str | None:
        """Return the answer, None when the client left before its end."""
        left = self.chance.randrange(6)
        if leaves and not left:
            task = asyncio.ensure_future(self._ask(service, request, leaves=False))
            for _ in range(self.chance.randrange(30)):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled():
                return task.result()
            self.heard["left waiting"] += 1
            return None
        async with aclosing(service.generate(request)) as events:
            async for event in events:
                if isinstance(event, Finished):
                    return event.text
                left -= isinstance(event, Started | TextDelta)
                if leaves and left <= 0:
                    self.heard["left"] += 1
                    return None
        raise AssertionError("the request ended without Finished")


async def assert_secrets_are_apart(service: Service, clients: list[Client]) -> None:
    """Look through what is stored: a session holds one client's secret only."""
    found = 0
    for summary in (await service.list_sessions()).sessions:
        detail = await service.get_session(summary.session)
        text = " ".join(str(message.message) for message in detail.messages)
        owners = [client.number for client in _owners(clients, text)]
        assert len(owners) <= 1, f"session {summary.session} holds the words of {owners}"
        found += len(owners)
    assert found >= len(clients) // 2


def _owners(clients: list[Client], text: str) -> list[Client]:
    return [client for client in clients if client.secret in text]


async def round_of(home: Path, clients: list[Client], turns: int) -> None:
    """Run a service from start to stop, all clients at once."""

    def engine(_name: str, _path: Path) -> FakeEngine:
        return FakeEngine(kv_cells=2400, window_tokens=1024, max_sequences=24)

    async with running_service(home, engine, flags=FLAGS) as service:
        await asyncio.gather(*(client.live(service, turns) for client in clients))
        await assert_secrets_are_apart(service, clients)


def run(home: Path, *, seed: int, clients: int = 64, rounds: int = 2, turns: int = 2) -> Counter[str]:
    """Let the clients live through restarts; raises when anything crosses. Returns how often things happened."""
    living = [Client(number, seed) for number in range(clients)]
    for _ in range(rounds):
        asyncio.run(asyncio.wait_for(round_of(home, living, turns), 600))
    return sum((client.heard for client in living), Counter())
