"""Our own routes, below /akashic/v1: what the CLI needs. Wire models and a table: protocol/native.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from akashic_daemon.api.app_state import check_may_name_files, service_of
from akashic_daemon.api.body import parse, read_json
from akashic_daemon.api.border import dump, json_response
from akashic_daemon.api.spool import spool
from akashic_daemon.api.stream import EventStream, as_ours
from akashic_daemon.errors import BadRequest
from akashic_daemon.protocol import archive, native

_PREFIX = "/akashic/v1"


def routes() -> list[Route]:
    """Return the native routes and /healthz."""
    p = _PREFIX
    return [
        Route("/healthz", healthz, methods=["GET"]),
        Route(f"{p}/status", status, methods=["GET"]),
        Route(f"{p}/listen", listen, methods=["POST"]),
        Route(f"{p}/stats", stats, methods=["GET"]),
        Route(f"{p}/stats/stream", stats_stream, methods=["GET"]),
        Route(f"{p}/import", import_transcript, methods=["POST"]),
        Route(f"{p}/sessions", list_sessions, methods=["GET"]),
        Route(f"{p}/sessions/{{session}}", get_session, methods=["GET"]),
        Route(f"{p}/sessions/{{session}}", remove_session, methods=["DELETE"]),
        Route(f"{p}/sessions/{{session}}/fork", fork_session, methods=["POST"]),
        Route(f"{p}/sessions/{{session}}/export", export_session, methods=["GET"]),
        Route(f"{p}/sessions/{{session}}/turn", turn, methods=["POST"]),
        Route(f"{p}/models", list_models, methods=["GET"]),
        Route(f"{p}/models", add_model, methods=["POST"]),
        Route(f"{p}/models/{{name}}", get_model, methods=["GET"]),
        Route(f"{p}/models/{{name}}", remove_model, methods=["DELETE"]),
    ]


def _json(model: BaseModel, status_code: int = 200) -> Response:
    return json_response(model.model_dump(), status_code)


def _line(model: BaseModel) -> bytes:
    return dump(model.model_dump()) + b"\n"


def _ndjson(
    source: AsyncIterator[bytes],
    error_event: type[native.TurnEvent] | type[native.ImportEvent],
    *,
    cleanup: Callable[[], None] | None = None,
) -> Response:
    def on_error(error: Exception) -> bytes:
        return _line(error_event(kind="error", error=as_ours(error).to_wire()))

    return EventStream(  # type: ignore[return-value]  # an ASGI app, as Starlette allows
        source, media_type="application/x-ndjson", keepalive=b"\n", on_error=on_error, cleanup=cleanup
    )


async def healthz(request: Request) -> Response:
    """Say whether the step loop turns."""
    healthy, detail = await service_of(request).health()
    return json_response({"healthy": healthy, "detail": detail}, 200 if healthy else 503)


async def status(request: Request) -> Response:
    """Answer with Status."""
    return _json(await service_of(request).status())


async def listen(request: Request) -> Response:
    """Listen on a loopback TCP port too, until the daemon ends; the token guards it."""
    body = parse(native.ListenRequest, await read_json(request))
    return _json(native.Listening(tcp=await service_of(request).tcp.open(body.port)))


async def stats(request: Request) -> Response:
    """Answer with Stats."""
    return _json(await service_of(request).stats())


async def stats_stream(request: Request) -> Response:
    """Answer with Stats again and again."""
    try:
        interval_s = min(60.0, max(0.2, float(request.query_params.get("interval_s", "1"))))
    except ValueError as error:
        raise BadRequest("interval_s is not a number", hint="e.g. interval_s=1") from error

    async def lines() -> AsyncIterator[bytes]:
        while True:
            yield _line(await service_of(request).stats())
            await asyncio.sleep(interval_s)

    return _ndjson(lines(), native.TurnEvent)


async def import_transcript(request: Request) -> Response:
    """Spool the body to a private file, then read it into sessions."""
    service = service_of(request)
    path = await spool(request.stream(), service.paths.cache_dir)
    query = request.query_params

    async def lines() -> AsyncIterator[bytes]:
        events = service.import_transcript(
            path, format=query.get("format"), name=query.get("name"), label=query.get("file")
        )
        async with aclosing(events):
            async for event in events:
                yield _line(event)

    return _ndjson(lines(), native.ImportEvent, cleanup=lambda: path.unlink(missing_ok=True))


async def list_sessions(request: Request) -> Response:
    """Answer with SessionList."""
    return _json(await service_of(request).list_sessions())


async def get_session(request: Request) -> Response:
    """Answer with SessionDetail."""
    return _json(await service_of(request).get_session(request.path_params["session"]))


async def remove_session(request: Request) -> Response:
    """Remove a session for good."""
    service, session = service_of(request), request.path_params["session"]
    removed = await service.remove_session(session)
    return _json(removed.model_copy(update={"memory_turns": await service.chat_memory.turns_of(session)}))


async def fork_session(request: Request) -> Response:
    """Branch a session off."""
    body = parse(native.ForkRequest, await read_json(request))
    return _json(await service_of(request).fork_session(request.path_params["session"], body), 201)


async def export_session(request: Request) -> Response:
    """Answer with a session's messages, one a line; with `kv=1` as a file that holds its KV too."""
    kv = request.query_params.get("kv", "0")
    if kv not in ("0", "1"):
        raise BadRequest(f"kv is {kv!r}", hint="kv=1 exports the KV too, kv=0 the messages alone")
    if kv == "1":
        return _archive(service_of(request).export_warm(request.path_params["session"]))
    messages = await service_of(request).export_session(request.path_params["session"])
    return Response(b"".join(dump(m.to_json()) + b"\n" for m in messages), media_type="application/x-ndjson")


def _archive(source: AsyncIterator[bytes]) -> Response:
    def on_error(error: Exception) -> bytes:
        return b"".join(archive.part(archive.Kind.FAIL, as_ours(error).to_wire()))

    return EventStream(  # type: ignore[return-value]  # an ASGI app, as Starlette allows
        source, media_type="application/octet-stream", keepalive=None, on_error=on_error
    )


async def turn(request: Request) -> Response:
    """Run a turn and stream its events."""
    body = parse(native.TurnRequest, await read_json(request))
    service, session = service_of(request), request.path_params["session"]

    async def lines() -> AsyncIterator[bytes]:
        async with aclosing(service.turn(session, body)) as events:
            async for event in events:
                yield dump(event.model_dump(exclude_defaults=True)) + b"\n"

    return _ndjson(lines(), native.TurnEvent)


async def list_models(request: Request) -> Response:
    """Answer with ModelList."""
    return _json(await service_of(request).list_models())


async def add_model(request: Request) -> Response:
    """Register a model file."""
    check_may_name_files(request, "adding a model")
    return _json(await service_of(request).add_model(parse(native.AddModelRequest, await read_json(request))), 201)


async def get_model(request: Request) -> Response:
    """Answer with ModelDetail."""
    return _json(await service_of(request).get_model(request.path_params["name"]))


async def remove_model(request: Request) -> Response:
    """Forget a model."""
    return _json(await service_of(request).remove_model(request.path_params["name"]))
