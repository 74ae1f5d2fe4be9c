"""Simulated agents that edit their histories at will, on a small cache: what must hold whatever they do."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any

from akashic_daemon.engine.base import BatchItem, SavedCells
from akashic_daemon.engine.fake import FakeCells, FakeEngine
from akashic_daemon.errors import AkashicError, BadRequest, EngineError, Overloaded, PromptTooLong
from akashic_daemon.schedule.events import GenerationInput, Started, TextDelta
from akashic_daemon.trajectory.message import Message, Role
from akashic_daemon.types import SequenceId
from watched_service import Outcome, Watch, driven, rendered, text_of, visible, watched

POLICIES = (
    "none",
    "tool-rolling-drop:keep=1,threshold=30%,gain=5%",
    "tool-rolling-drop:keep=2",
    "window:sink=1,recent=3,budget=25%,threshold=30%,gain=5%",
)


class Frail(FakeEngine):
    """Fails its next call of a kind when it is told to."""

    failing = ""

    def _fail(self, call: str) -> None:
        if self.failing == call:
            self.failing = ""
            raise EngineError(f"{call} was told to fail")

    def decode(self, batch: Sequence[BatchItem]) -> None:
        """Compute, or fail."""
        self._fail("decode")
        super().decode(batch)

    def save(self, sequence: SequenceId, ranges: Sequence[tuple[int, int]]) -> FakeCells:
        """Copy out, or fail."""
        self._fail("save")
        return super().save(sequence, ranges)

    def load(self, saved: SavedCells, sequence: SequenceId, ranges: Sequence[tuple[int, int]]) -> None:
        """Add copies, or fail."""
        self._fail("load")
        super().load(saved, sequence, ranges)


class Agent:
    """One client with a history of its own."""

    def __init__(self, number: int, chance: random.Random) -> None:
        self.number, self.chance = number, chance
        self.session: str | None = f"s{number}" if chance.random() < 0.6 else None
        self.policy = chance.choice(POLICIES) if chance.random() < 0.5 else None
        self.edit_reuse = "drop" if chance.random() < 0.75 else None
        self.ops: list[dict[str, Any]] = []
        self.history: list[Message] = []
        if chance.random() < 0.5:
            self.history.append(Message(Role.SYSTEM, chance.choice(("be brief", "be exact")) * 2))
        self.history.append(Message(Role.USER, self.words()))

    def words(self) -> str:
        return "".join(self.chance.choice("ab ") for _ in range(self.chance.randint(1, 12))) + "."

    def new_message(self) -> Message:
        role = self.chance.choice((Role.USER, Role.TOOL, Role.TOOL))
        return Message(role, self.words(), tool_call_id="c" if role is Role.TOOL else None)

    def edit(self, others: list[Agent]) -> None:
        """Do one thing that clients do to their histories."""
        chance, history = self.chance, self.history
        at = chance.randrange(len(history))
        kind = chance.choice(
            ("remove", "prune", "replace", "insert", "lengthen", "regenerate", "fork", "other", "name", "ops", "mode")
        )
        if kind == "remove" and len(history) > 1:
            del history[at]
        elif kind == "prune":
            history[at] = replace(history[at], content=history[at].content[: chance.randint(0, 3)])
        elif kind == "replace":
            history[at] = replace(history[at], content=self.words())
        elif kind == "lengthen":
            history[at] = replace(history[at], content=history[at].content + self.words())
        elif kind == "insert":
            history.insert(at, self.new_message())
        elif kind in ("regenerate", "fork"):
            while len(history) > 1 and (
                history[-1].role is Role.ASSISTANT or (kind == "fork" and chance.random() < 0.6)
            ):
                history.pop()
        elif kind == "other":
            self.history = list(chance.choice(others).history)
        elif kind == "name":
            self.session = chance.choice((None, f"s{chance.randrange(4)}"))
        elif kind == "ops":
            self.ops = (
                [] if self.ops or chance.random() < 0.3 else [self.operation() for _ in range(chance.randint(1, 3))]
            )
        elif kind == "mode":
            self.edit_reuse = chance.choice((None, "drop", "exact"))
            self.policy = chance.choice((None, *POLICIES))

    def operation(self) -> dict[str, Any]:
        chance, count = self.chance, len(self.history)
        message = chance.randrange(count)
        op: dict[str, Any] = chance.choice(
            (
                {"op": "drop", "messages": [message]},
                {"op": "drop", "select": chance.choice(("tool[:-1]", "user[:-1]", "messages 0..1", "tool"))},
                {"op": "repos"},
                {"op": "replace", "message": message, "content": self.words()},
                {"op": "replace", "select": "tool[:-1]", "content": "gone"},
                {"op": "drop", "tokens": [[(low := chance.randrange(40)), low + chance.randint(1, 20)]]},
            )
        )
        return {**op, "at": chance.randint(message, count)} if chance.random() < 0.5 else dict(op)

    def request(self) -> GenerationInput:
        return GenerationInput(
            messages=tuple(self.history), max_tokens=self.chance.randint(1, 12), session=self.session,
            policy=self.policy, edit_reuse=self.edit_reuse, cache_ops=tuple(self.ops),  # type: ignore[arg-type]
        )  # fmt: skip

    def take(self, text: str) -> None:
        """Go on after an answer; the client may have another idea of what was said."""
        if text and self.chance.random() < 0.9:
            self.history.append(Message(Role.ASSISTANT, text if self.chance.random() < 0.9 else text[:-1] or "x"))
        self.history.append(self.new_message())


class World:
    """Agents on one service; remembers how often things happened, so that tests can tell that they did."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.window = chance.choice((120, 200, 400))
        cells = chance.choice((self.window, self.window + 60, 3 * self.window))
        self.engine = Frail(
            kv_cells=cells, max_sequences=chance.choice((2, 3, 5, 16)), window_tokens=self.window,
            end_every=chance.choice((5, 29)),
        )  # fmt: skip
        self.flags = {
            "schedule.max_running": chance.choice((1, 2, 4)),
            "schedule.prefill_tokens": chance.choice((16, 64)),
            "schedule.prefill_tokens_busy": chance.choice((3, 16)),
        }
        self.agents = [Agent(n, random.Random(seed * 100 + n)) for n in range(chance.randint(1, 4))]
        self.faults = chance.random() < 0.25
        self.counts: dict[str, int] = {}

    def count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    async def run(self, home: FilePath, turns: int) -> None:
        async with watched(home, lambda _n, _p: self.engine, flags=self.flags) as watch:
            await asyncio.gather(*(self.live(watch, agent, turns) for agent in self.agents))
            await watch.check_index()
            index = watch.service._loop.index
            assert index is not None
            assert not index.running
            assert index.scratches == 0

    async def live(self, watch: Watch, agent: Agent, turns: int) -> None:
        for _ in range(turns):
            while agent.chance.random() < 0.45:
                agent.edit(self.agents)
            agent.history = agent.history or [agent.new_message()]
            if self.faults and agent.chance.random() < 0.1:
                self.engine.failing = agent.chance.choice(("decode", "save", "load"))
            try:
                if agent.chance.random() < 0.12:
                    await self.leave_early(watch, agent)
                    continue
                outcome = await watch.ask(agent.request())
            except AkashicError as error:
                self.refused(error, agent)
                continue
            finally:
                await watch.check_index()
            self.check(agent, outcome)
            agent.take(outcome.finished.text)

    async def leave_early(self, watch: Watch, agent: Agent) -> None:
        left = agent.chance.randint(0, 4)
        async with aclosing(watch.service.generate(agent.request())) as events:
            async for event in events:
                left -= isinstance(event, Started | TextDelta)
                if left < 0:
                    self.count("left early")
                    break

    def refused(self, error: AkashicError, agent: Agent) -> None:
        assert "internal" not in error.message, error
        if isinstance(error, BadRequest):
            assert agent.ops, error
            agent.ops = []
        elif isinstance(error, PromptTooLong):
            agent.history = agent.history[-2:]
        elif isinstance(error, EngineError) and "told to fail" in error.message:
            assert self.faults
        else:
            assert isinstance(error, Overloaded), repr(error)
            agent.history = agent.history[-3:]
        self.count(type(error).__name__)

    def check(self, agent: Agent, outcome: Outcome) -> None:
        job = outcome.job
        self.count(job.route.kind)
        shown = outcome.shown
        for route in job.routes:
            job_route, job.route = job.route, route
            other = text_of(visible(job))
            assert other == shown, f"{route.kind} shows {other!r}, {job_route.kind} {shown!r}: {route.edits}"
            job.route = job_route
        if not agent.ops and (agent.policy or "none") == "none":
            wanted = rendered(agent.history)
            assert shown == wanted, f"{job.route.kind} shows {shown!r} for {wanted!r}: {job.route.edits}"
        assert shown.endswith("<|im_start|>assistant\n"), (job.route.kind, shown)
        reuse = outcome.finished.reuse
        if job.route.kind == "plain":
            told = reuse.reused_tokens + reuse.computed_tokens
            assert told >= job.prompt_tokens or agent.ops or agent.policy, (reuse, job.prompt_tokens)


def run_world(seed: int, home: FilePath, turns: int = 8) -> World:
    """Let a world live; raises when something doesn't hold."""
    home.mkdir(exist_ok=True)
    world = World(seed)
    with driven():
        asyncio.run(asyncio.wait_for(world.run(home, turns), 120))
    return world
