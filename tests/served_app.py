"""A stand-in service behind the real routes: asked by hand, or over HTTP on a free port for clients that want a URL."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette

from akashic_daemon.api.app import create_app
from akashic_daemon.protocol.native import Reuse
from akashic_daemon.schedule.events import Finished, GenerationEvent, GenerationInput, Started, TextDelta, ToolCallDelta
from echo_service import Caller, EchoService, run


def post(service: EchoService, body: Mapping[str, Any] | bytes, path: str) -> Caller:
    """Send one request by hand and return what came back."""
    caller = Caller(service, path, [body if isinstance(body, bytes) else json.dumps(body).encode()])

    async def check() -> None:
        await create_app(service, token=None)(caller.scope, caller.receive, caller.send)

    run(check)
    return caller


def asked(home: Path, body: Mapping[str, Any], path: str) -> GenerationInput:
    """Return what a body asks the service for."""
    service = EchoService(home)
    caller = post(service, body, path)
    assert caller.status == 200, caller.text
    return service.requests[0]


def header(caller: Caller, name: str) -> str | None:
    """Return a header of the answer, by its name in lower case."""
    found = [v.decode() for k, v in caller.sent[0]["headers"] if k.decode().lower() == name]
    return found[0] if found else None


@contextmanager
def served(service: EchoService, *, token: str | None = None) -> Iterator[str]:
    """Serve until the block ends; gives the base URL."""
    app = create_app(service, token=token)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off"))
    listening = threading.Event()

    async def serve() -> None:
        serving = asyncio.create_task(server.serve())
        while not server.started and not serving.done():
            await asyncio.sleep(0.005)
        listening.set()
        await serving

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert listening.wait(30)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)


@asynccontextmanager
async def listening(app: Starlette) -> AsyncIterator[str]:
    """Serve on this event loop until the block ends, for a service that lives on it; gives the base URL."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off"))
    serving = asyncio.create_task(server.serve())
    while not server.started and not serving.done():
        await asyncio.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving


def scripted(home: Path, events: Iterable[GenerationEvent]) -> EchoService:
    """Return a service that answers every request with these events after Started."""
    kept = tuple(events)

    async def script() -> AsyncGenerator[GenerationEvent, None]:
        yield Started("req-1", "s", "echo", 7, Reuse(reused_tokens=4, computed_tokens=3))
        for event in kept:
            yield event

    return EchoService(home, script)


__all__ = ["Finished", "TextDelta", "ToolCallDelta", "scripted", "served"]
