"""A service on the fake engine of which every request's path is known, so that each answer is held to the naive twin.

`driven` runs everything on the event loop, one step between two turns of it: the same seed is the same run.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any
from unittest import mock

from akashic_daemon.cache.index import RadixIndex
from akashic_daemon.cache.node import Lineage
from akashic_daemon.engine.fake import END, FakeEngine, contents
from akashic_daemon.errors import AkashicError
from akashic_daemon.program import oracle
from akashic_daemon.schedule.events import Finished, GenerationInput, Started
from akashic_daemon.schedule.loop import StepLoop
from akashic_daemon.schedule.request import Request
from akashic_daemon.service import Service
from akashic_daemon.store.thread import StoreThread
from akashic_daemon.trajectory.message import Message
from fake_service import MakeEngine, running_service


@dataclass(slots=True)
class Watch:
    """A running service and the requests that reached its loop."""

    service: Service
    jobs: dict[str, Request] = field(default_factory=dict)

    async def ask(self, request: GenerationInput) -> Outcome:
        """Run a request to its end and hold its answer to the twin."""
        started: Started | None = None
        async with aclosing(self.service.generate(request)) as events:
            async for event in events:
                if isinstance(event, Started):
                    started = event
                elif isinstance(event, Finished):
                    assert started is not None
                    outcome = Outcome(self.jobs[started.request], event)
                    outcome.check_answer(self.end_every)
                    return outcome
        raise AssertionError("the request ended without Finished")

    @property
    def end_every(self) -> int:
        """How often the engine ends a turn."""
        engine = self.service._loop.engine
        assert isinstance(engine, FakeEngine)
        return engine._end_every

    async def check_index(self) -> None:
        """Assert that the index is sound and says of the engine what is so."""
        await self.service._host.on_engine_thread(self._check_index)

    def _check_index(self) -> None:
        index, engine = self.service._loop.index, self.service._loop.engine
        assert index is not None
        assert isinstance(engine, FakeEngine)
        index.check()
        check_holdings(index, engine)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished request."""

    job: Request
    finished: Finished

    @property
    def shown(self) -> str:
        """The text that the first answer token saw, in order of position."""
        return text_of(visible(self.job))

    def check_answer(self, end_every: int) -> None:
        """Assert that each token is what the twin says for the route taken."""
        job = self.job
        path = job.route.path.then(job.generated)
        expected = contents(path)[len(job.route.path.tokens) - 1 :]
        said = [END if c % end_every == 0 else 97 + c % 26 for c in expected[: len(job.generated)]]
        assert job.generated == said, f"{job.id} on its {job.route.kind} route says what the twin doesn't"
        reuse = self.finished.reuse
        assert reuse.computed_tokens >= 1
        assert 0 <= reuse.reused_tokens <= job.prompt_tokens


def visible(job: Request) -> array[int]:
    """Return the tokens that the first answer token sees, in order of position."""
    positions = oracle.run(job.route.path).positions
    return array("i", [job.route.path.tokens[i] for i in sorted(positions, key=positions.__getitem__)])


def text_of(tokens: Sequence[int]) -> str:
    """Return tokens of the fake engine as text."""
    marks = {256: "<|im_end|>", 257: "<|im_start|>"}
    return "".join(marks.get(t) or chr(t) for t in tokens)


def rendered(messages: Sequence[Message]) -> str:
    """Return the prompt's text in the fake engine's template."""
    turns = "".join(f"<|im_start|>{m.role.value}\n{m.content}<|im_end|>\n" for m in messages)
    return turns + "<|im_start|>assistant\n"


def check_holdings(index: RadixIndex, engine: FakeEngine) -> None:
    """Assert that each sequence holds in the engine exactly what the index believes, token by token."""
    tree = index._tree
    for sequence, tip in tree.tip_of.items():
        believed: dict[int, int] = {}
        for home in tree.holdings.homes(sequence):
            lineage = Lineage.of(home)
            for span in home.cells():
                for start, end in home.held[sequence]:
                    low, high = max(start, span.first), min(end, span.first + span.length)
                    for i in range(low, high):
                        position = span.position + i - span.first
                        assert position not in believed, f"sequence {sequence} holds two cells at {position}"
                        believed[position] = _token_at(lineage, i)
        held = {p: c.token for p, c in engine.cells[sequence].items()}
        assert held == believed, f"sequence {sequence} at {tip.end}"
    for sequence in tree.free:
        assert not engine.cells[sequence], f"the free sequence {sequence} holds cells"


def _token_at(lineage: Lineage, index: int) -> int:
    for node in lineage.nodes:
        if node.is_run and node.key and node.indices[0] <= index < node.indices[1]:
            return node.key[index - node.indices[0]]
    raise AssertionError(f"no run holds token {index}")


@asynccontextmanager
async def watched(
    home: FilePath, make: MakeEngine, *, models: Sequence[str] = ("fake",), flags: Mapping[str, Any] | None = None
) -> AsyncIterator[Watch]:
    """Run a service and watch its requests."""
    async with running_service(home, make, models=models, flags=flags) as service:
        watch = Watch(service)
        submit = service._loop.submit

        def remember(job: Request) -> None:
            watch.jobs[str(job.id)] = job
            submit(job)

        with mock.patch.object(service._loop, "submit", remember):
            yield watch


@contextmanager
def driven() -> Iterator[None]:
    """Let services inside the block run on the event loop alone, without threads."""
    pumps: list[asyncio.Task[None]] = []

    async def inline(function: Callable[..., Any], *args: Any) -> Any:
        await asyncio.sleep(0)
        return function(*args)

    async def run(_self: StoreThread, function: Callable[[], Any]) -> Any:
        await asyncio.sleep(0)
        return function()

    async def pump(loop: StepLoop) -> None:
        while True:
            loop._drain(0.0)
            if loop.busy:
                loop._guard.run(loop._step)
            await asyncio.sleep(0)

    def start(loop: StepLoop) -> None:
        pumps.append(asyncio.get_running_loop().create_task(pump(loop)))

    def stop(loop: StepLoop, _timeout_s: float) -> bool:
        with suppress(AkashicError):
            loop._drain(0.0)
        for request in list(loop._running):
            loop._lives.finish(request, "cancelled")
        loop.set_engine(None)
        for task in pumps:
            task.get_loop().call_soon_threadsafe(task.cancel)
        return True

    with (
        mock.patch("asyncio.to_thread", inline),
        mock.patch.object(StoreThread, "run", run),
        mock.patch.object(StepLoop, "start", start),
        mock.patch.object(StepLoop, "stop", stop),
    ):
        yield
