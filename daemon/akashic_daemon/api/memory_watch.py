"""The route that follows logs into memory. Wire models: protocol/memory_watch.py."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from akashic_daemon.api.app_state import check_may_name_files, service_of
from akashic_daemon.api.body import parse, read_json
from akashic_daemon.api.border import dump
from akashic_daemon.api.stream import EventStream, as_ours
from akashic_daemon.protocol.memory_watch import WatchEvent, WatchRequest


def routes() -> list[Route]:
    """Return the route."""
    return [Route("/akashic/v1/memory/watch", watch, methods=["POST"])]


async def watch(request: Request) -> Response:
    """Follow logs, telling what happens, until the client leaves."""
    service = service_of(request)
    check_may_name_files(request, "watching logs")
    body = parse(WatchRequest, await read_json(request))

    async def lines() -> AsyncIterator[bytes]:
        events = service.memory_watch.watch(
            body.paths,
            namespace=body.namespace or service.settings.config.memory.namespace,
            include=body.include,
            once=body.once,
            quiet_s=body.quiet_s,
        )
        async with aclosing(events):
            async for event in events:
                yield dump(WatchEvent(**asdict(event)).model_dump()) + b"\n"

    def on_error(error: Exception) -> bytes:
        return dump(WatchEvent(kind="error", error=as_ours(error).to_wire()).model_dump()) + b"\n"

    return EventStream(  # type: ignore[return-value]  # an ASGI app, as Starlette allows
        lines(), media_type="application/x-ndjson", keepalive=b"\n", on_error=on_error
    )
