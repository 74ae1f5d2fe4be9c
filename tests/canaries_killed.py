"""Canary clients over HTTP while their daemon is killed or told to stop, again and again, with tiers on.

Each client has a secret; the fake engine's every token depends on all that it saw, so another's KV, in the engine, in RAM or
read back from disk, changes an answer. A client whose request a kill cut off asks the same again.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

from akashic_daemon.trajectory.message import Message
from daemon_process import DaemonProcess
from fake_service import NEVER, assistant, fresh_answer, user

_MOST_MESSAGES = 5
_LEAVES = 0.25


class Client:
    """One conversation over HTTP; `heard` counts what happened in it."""

    def __init__(self, number: int, seed: int) -> None:
        self.chance = random.Random(f"{seed}:{number}")
        self.secret = f"canary{number:03d}{self.chance.randrange(10**6):06d}"
        self.session = f"client-{number}" if number % 3 else None
        self.history: list[Message] = []
        self.heard: Counter[str] = Counter()

    async def live(self, client: httpx.AsyncClient, stop: asyncio.Event) -> None:
        """Ask until told to stop, or until the daemon is gone."""
        while not stop.is_set():
            if len(self.history) > _MOST_MESSAGES:
                del self.history[: len(self.history) - 2]
            words = "".join(self.chance.choice("abc ") for _ in range(self.chance.randrange(60)))
            asked, most = [*self.history, user(f"{self.secret} {words}")], self.chance.randint(1, 12)
            try:
                said = await self._ask(client, asked, most)
            except httpx.HTTPError:
                self.heard["cut off"] += 1
                return
            if said is not None:
                assert said == fresh_answer(asked, most, end_every=NEVER), f"{self.secret} heard what it should not"
                self.history = [*asked, assistant(said)]
                self.heard["answered"] += 1

    async def _ask(self, client: httpx.AsyncClient, asked: list[Message], most: int) -> str | None:
        """Return the answer; None for one that the client left, or that the stopping daemon didn't end."""
        body: dict[str, Any] = {
            "messages": [{"role": m.role.value, "content": m.content} for m in asked], "max_tokens": most, "stream": True,
        }  # fmt: skip
        if self.session is not None:
            body["akashic"] = {"session": self.session}
        leaves, said, is_whole = self.chance.random() < _LEAVES, "", False
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                self.heard[f"status {response.status_code}"] += 1
                assert response.status_code in (499, 503), await response.aread()
                return None
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                if "error" in chunk:
                    self.heard[chunk["error"]["code"]] += 1
                    assert chunk["error"]["code"] == "cancelled", chunk
                    return None
                choice = chunk["choices"][0]
                said += choice["delta"].get("content") or ""
                is_whole = is_whole or choice["finish_reason"] is not None
                if leaves:
                    self.heard["left"] += 1
                    return None
        return said if is_whole else None


def secrets_apart(daemon: DaemonProcess, clients: list[Client]) -> int:
    """Fail if a stored session holds two clients' words; return in how many a secret was found."""
    found = 0
    with daemon.client() as client:
        for summary in client.get("/akashic/v1/sessions").json()["sessions"]:
            text = client.get(f"/akashic/v1/sessions/{summary['session']}").text
            owners = [one.secret for one in clients if one.secret in text]
            assert len(owners) <= 1, f"session {summary['session']} holds the words of {owners}"
            found += len(owners)
        report = client.get("/akashic/v1/cache/verify").json()
        assert report["findings"] == [], report
    return found


def run(home: Path, *, seed: int, clients: int = 16, lives: int = 4, answers: int = 60) -> Counter[str]:
    """Let clients live through so many lives of a daemon, each over after so many answers; raises when anything crosses."""
    chance, living = random.Random(seed), [Client(number, seed) for number in range(clients)]
    settings = {"cache.ram_bytes": "1MiB", "cache.ssd_bytes": "64MiB", "schedule.max_running": "4"}
    daemon = DaemonProcess(home, "--cells=2400", "--window=1024", settings=settings)
    ends: Counter[str] = Counter()
    for life in range(lives):
        with daemon:
            if life:
                secrets_apart(daemon, living)
            end = "kill" if chance.random() < 0.5 else "sigterm"
            asyncio.run(asyncio.wait_for(_life(daemon, living, answers, end), 600))
            ends[end] += 1
    with daemon:
        assert secrets_apart(daemon, living) >= clients // 2
        assert daemon.end(20) == 0
    return sum((client.heard for client in living), ends)


async def _life(daemon: DaemonProcess, living: list[Client], answers: int, end: str) -> None:
    stop = asyncio.Event()
    before = sum(one.heard["answered"] for one in living)
    limits = httpx.Limits(max_connections=2 * len(living))
    async with httpx.AsyncClient(base_url=daemon.url, headers=daemon.headers, timeout=120, limits=limits) as client:
        tasks = [asyncio.create_task(one.live(client, stop)) for one in living]
        while sum(one.heard["answered"] for one in living) < before + answers:
            done = [task for task in tasks if task.done()]
            for task in done:
                task.result()
            assert len(done) < len(tasks), "all clients have gone"
            await asyncio.sleep(0.01)
        if end == "kill":
            daemon.kill()
        else:
            assert await asyncio.to_thread(daemon.end, 20) == 0
        stop.set()
        await asyncio.gather(*tasks)
