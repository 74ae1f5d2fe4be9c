"""The same clients on services that are interrupted: by a restart, a kill, or (their twin) by a model that comes between.

All three lose the KV; only the twin keeps its memory. So whatever a restarted service does otherwise, it forgot.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import Any, Literal

from agents_fuzz import Agent
from akashic_daemon.engine.base import ModelInfo
from akashic_daemon.engine.fake import FakeEngine
from akashic_daemon.errors import AkashicError
from akashic_daemon.protocol import native
from akashic_daemon.schedule.events import GenerationInput
from fake_service import MakeEngine, answer
from watched_service import Outcome, Watch, watched

Interruption = Literal["restart", "kill", "swap"]


class Named(FakeEngine):
    """Says which model it is, and under which fingerprint."""

    def __init__(self, name: str, *, window_tokens: int = 2048, parts: Mapping[str, str] | None = None) -> None:
        super().__init__(kv_cells=8192, window_tokens=window_tokens)
        self._name, self._parts = name, dict(parts or {})
        self.template: str | None = super().model.chat_template

    @property
    def model(self) -> ModelInfo:
        """The fake's model by another name."""
        fingerprint = f"model1:{self._name}{sorted(self._parts.items()) or ''}"
        return replace(
            super().model, name=self._name, fingerprint=fingerprint, parts=self._parts, chat_template=self.template
        )


@dataclass(slots=True)
class Life:
    """A service that can be interrupted; `watch` is the one that runs."""

    home: FilePath
    how: Interruption
    watch: Watch
    stack: AsyncExitStack
    make: MakeEngine
    flags: Mapping[str, Any] | None = None

    async def interrupt(self) -> None:
        """Let the KV be lost."""
        if self.how == "swap":
            await answer(self.watch.service, GenerationInput(text="x", max_tokens=1, model="between"))
            return
        store, killed = self.home / "store", self.home / "killed"
        if self.how == "kill":
            await self.watch.service._thread.settled()
            shutil.copytree(store, killed)  # what the disk holds while the log isn't folded into the file yet
        await self.stack.aclose()
        if self.how == "kill":
            shutil.rmtree(store)
            killed.rename(store)
        await self.begin()

    async def begin(self) -> None:
        """Start a service on what the last one left."""
        self.watch = await self.stack.enter_async_context(_service(self.home, self.make, self.flags))
        await self.watch.service.get_model("a")  # it loads at the start, and would take the place of another later


def named(name: str, _path: FilePath) -> Named:
    """Make an engine of that name."""
    return Named(name)


def _service(home: FilePath, make: MakeEngine, flags: Mapping[str, Any] | None) -> AbstractAsyncContextManager[Watch]:
    no_tiers = {"cache.ram_bytes": 0, "cache.ssd_bytes": 0}
    return watched(home, make, models=("a", "b", "between"), flags={**no_tiers, **(flags or {})})


@asynccontextmanager
async def life(
    home: FilePath, how: Interruption, *, make: MakeEngine = named, flags: Mapping[str, Any] | None = None
) -> AsyncIterator[Life]:
    """Run a service that is interrupted in that way."""
    home.mkdir(exist_ok=True)
    async with AsyncExitStack() as stack:
        watch = await stack.enter_async_context(_service(home, make, flags))
        await watch.service.get_model("a")
        yield Life(home, how, watch, stack, make, flags)


def seen(outcome: Outcome) -> tuple[object, ...]:
    """Return what two services must agree on: the paths that were offered, the one that was taken, and what is told."""
    reuse = outcome.finished.reuse
    offered = [(r.kind, r.path.digest()) for r in outcome.job.routes]
    miss = None if reuse.miss is None else reuse.miss.model_dump()
    return (
        outcome.job.route.kind, outcome.job.route.path.digest(), offered, outcome.finished.text,
        reuse.computed_tokens, reuse.dropped_tokens, reuse.reposed_tokens, sorted(reuse.notes), miss,
    )  # fmt: skip


async def fork(on: Life, agent: Agent, name: str) -> str:
    """Let an agent go on in a branch of its session, if it has one."""
    sessions = [s.session for s in (await on.watch.service.list_sessions()).sessions]
    if agent.session not in sessions:
        return "no fork"
    count = agent.chance.randint(1, len(await on.watch.service.export_session(agent.session)))
    await on.watch.service.fork_session(agent.session, native.ForkRequest(name=name, at_message=count))
    history = [replace(m, event_time_s=None) for m in await on.watch.service.export_session(name)]
    agent.session, agent.history = name, [*history, agent.new_message()]
    agent.ops = []
    return name


async def tell(home: FilePath, how: Interruption, seed: int, turns: int) -> Sequence[object]:
    """Let agents live on an interrupted service and tell what happened to each of their requests."""
    chance = random.Random(seed)
    window = chance.choice((200, 400, 2048))
    agents = [Agent(number, random.Random(seed * 100 + number)) for number in range(chance.randint(1, 3))]
    told: list[object] = []
    async with life(home, how, make=lambda name, _p: Named(name, window_tokens=window)) as on:
        for _ in range(turns):
            agent = chance.choice(agents)
            while agent.chance.random() < 0.45:
                agent.edit(agents)
            agent.history = agent.history or [agent.new_message()]
            if chance.random() < 0.5:
                await on.interrupt()
                told.append("interrupted")
            request = replace(agent.request(), model=chance.choice(("a", "a", "a", "b")))
            try:
                if chance.random() < 0.2:
                    told.append(await fork(on, agent, f"fork{len(told)}"))
                    request = replace(agent.request(), model=request.model)
                outcome = await on.watch.ask(request)
            except AkashicError as error:
                told.append(error.message)
                agent.ops, agent.history = [], agent.history[-2:]
                continue
            told.append((agent.number, request, seen(outcome)))
            agent.take(outcome.finished.text)
    return told
