"""A service on the fake engine with something in its memory, and the prompts that reach its step loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from akashic_daemon.engine.fake import FakeEngine
from akashic_daemon.memory import static_vectors
from akashic_daemon.memory.embedder import Embedder
from akashic_daemon.memory.memory import Said
from akashic_daemon.memory_service.embedding import EmbeddingService
from akashic_daemon.program.align import entries_of
from akashic_daemon.program.route import Route
from akashic_daemon.protocol import native
from akashic_daemon.schedule.loop import StepLoop
from akashic_daemon.schedule.request import Request
from akashic_daemon.service import Service
from fake_service import NEVER, MakeEngine, running_service

FACTS = (
    "The parrot eats mangoes and nothing else.",
    "Rent is due on Monday, as always.",
    "My bicycle has a flat tyre at the rear wheel.",
    "We are out of coffee again.",
    "The meeting with Joanna was moved to the blue room.",
)
Check = Callable[[Service], Awaitable[None]]


def on_service(
    home: Path, check: Check, *, window_tokens: int = 8192, flags: dict[str, Any] | None = None, template: str = ""
) -> None:
    """Run `check` on a service whose answers take a few bytes."""

    def engine(_name: str, _path: Path) -> FakeEngine:
        more = {"template": template} if template else {}
        return FakeEngine(kv_cells=65_536, window_tokens=window_tokens, end_every=NEVER, **more)  # type: ignore[arg-type]

    make: MakeEngine = engine

    async def run() -> None:
        async with running_service(
            home, make, flags={"memory.chat": True, "cache.ram_bytes": 0, "cache.ssd_bytes": 0, **(flags or {})}
        ) as service:
            await check(service)

    with one_embedder():
        asyncio.run(run())


async def fill(service: Service, texts: Sequence[str] = FACTS, *, namespace: str = "user", source: str = "old") -> None:
    """Put something into memory, long ago."""
    said = [Said("user", text, f"{source}-{number}", 1.6e9 + number) for number, text in enumerate(texts)]
    await service.memory.add(namespace, said, source=source)


_embedder = cache(static_vectors.load)


@contextmanager
def one_embedder() -> Iterator[None]:
    """Let services share an embedder: reading its vectors takes longer than what most tests do with them."""

    async def embedder(_service: EmbeddingService) -> Embedder:
        return await asyncio.to_thread(_embedder)

    with mock.patch.object(EmbeddingService, "embedder", embedder):
        yield


@contextmanager
def prompts() -> Iterator[list[bytes]]:
    """Give the prompts that are submitted, as bytes: one for each request."""
    seen: list[bytes] = []
    submit = StepLoop.submit

    def noting(loop: StepLoop, job: Request) -> None:
        seen.append(bytes(t if t < 256 else 256 - t & 0xFF for t in job.routes[0].path.tokens))
        submit(loop, job)

    with mock.patch.object(StepLoop, "submit", noting):
        yield seen


@contextmanager
def routes() -> Iterator[list[Route]]:
    """Give the way of each request in which its program is carried out."""
    seen: list[Route] = []
    submit = StepLoop.submit

    def noting(loop: StepLoop, job: Request) -> None:
        seen.append(job.routes[0])
        submit(loop, job)

    with mock.patch.object(StepLoop, "submit", noting):
        yield seen


def visible(route: Route) -> list[bytes]:
    """Return what of each message the answer attends to."""
    entries = entries_of(route.path, route.owners)
    return [bytes(t if t < 256 else 256 - t & 0xFF for t in entry.tokens) for entry in entries]


async def turn(service: Service, session: str, prompt: str, **options: Any) -> native.TurnEvent:
    """Run one turn of a kept session to its end."""
    request = native.TurnRequest(prompt=prompt, **{"max_tokens": 8, "temperature": 0, **options})
    async with aclosing(service.turn(session, request)) as events:
        async for event in events:
            if event.kind == "done":
                return event
    raise AssertionError("the turn ended without done")
