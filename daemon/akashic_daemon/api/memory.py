"""Native routes about long-term memory. Wire models and a table: protocol/memory.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from akashic_daemon.api import memory_views as views
from akashic_daemon.api.app_state import service_of
from akashic_daemon.api.body import BODY_LIMIT_BYTES, parse, read_json
from akashic_daemon.api.border import dump, json_response
from akashic_daemon.api.spool import spool
from akashic_daemon.api.stream import EventStream, as_ours, one_line
from akashic_daemon.errors import BadRequest, TranscriptError
from akashic_daemon.memory.answers import Selector
from akashic_daemon.memory.memory import Said
from akashic_daemon.memory.rerank import Reranked
from akashic_daemon.memory_service.service import MemoryService
from akashic_daemon.protocol import memory as wire
from akashic_daemon.service import Service
from akashic_daemon.store.memory.rows import turn_digest

_PREFIX = "/akashic/v1/memory"
_READ_BYTES = 1 << 20


def routes() -> list[Route]:
    """Return the routes."""
    return [
        Route(_PREFIX, stats, methods=["GET"]),
        Route(f"{_PREFIX}/turns", add, methods=["POST"]),
        Route(f"{_PREFIX}/sessions/{{session}}", remember, methods=["POST"]),
        Route(f"{_PREFIX}/search", search, methods=["POST"]),
        Route(f"{_PREFIX}/chunks", list_chunks, methods=["GET"]),
        Route(f"{_PREFIX}/chunks/{{id}}", chunk, methods=["GET"]),
        Route(f"{_PREFIX}/history/{{id}}", history, methods=["GET"]),
        Route(f"{_PREFIX}/keep-both", keep_both, methods=["POST"]),
        Route(f"{_PREFIX}/forget", forget, methods=["POST"]),
        Route(f"{_PREFIX}/compact", compact, methods=["POST"]),
        Route(f"{_PREFIX}/export", export, methods=["GET"]),
        Route(f"{_PREFIX}/import", import_memory, methods=["POST"]),
    ]


def _memory(request: Request) -> MemoryService:
    return service_of(request).memory


def _namespaces(request: Request) -> list[str] | None:
    return request.query_params.getlist("namespace") or None


async def stats(request: Request) -> Response:
    """Answer with MemoryStats."""
    return json_response(views.stats(await _memory(request).stats()).model_dump())


async def add(request: Request) -> Response:
    """Remember turns."""
    body = parse(wire.AddRequest, await read_json(request))
    namespace = body.namespace or service_of(request).settings.config.memory.namespace
    turns = [Said(t.speaker, t.text, t.reference or turn_digest(t.speaker, t.text), t.event_at_s) for t in body.turns]
    done = await _memory(request).add(namespace, turns, source=body.source)
    return json_response(views.remembered(done, namespace).model_dump())


async def remember(request: Request) -> Response:
    """Take a stored session's messages into memory."""
    body = parse(wire.RememberRequest, await read_json(request))
    service, session = service_of(request), request.path_params["session"]
    namespace = body.namespace or service.settings.config.memory.namespace

    async def work() -> wire.Remembered:
        return views.remembered(await service.chat_memory.remember(session, namespace), namespace)

    return one_line(work, lambda error: wire.Remembered(kind="error", error=error))


async def search(request: Request) -> Response:
    """Answer with the turns that fit a question best."""
    body = parse(wire.SearchRequest, await read_json(request))
    found = await _memory(request).search(
        body.query,
        namespaces=body.namespaces,
        limit=body.limit,
        budget_tokens=body.budget_tokens,
        now=body.now_s,
        explain=body.explain,
    )
    ranked = await _memory(request).rerank(body.query, found) if body.rerank else Reranked(tuple(found))
    unknown, known = ([], []) if found else await _memory(request).unknown(body.namespaces or ())
    result = wire.SearchResult(
        found=[views.found_view(one) for one in ranked.found], note=ranked.problem, model_tokens=ranked.tokens,
        unknown_namespaces=unknown, known_namespaces=known,
    )  # fmt: skip
    return json_response(result.model_dump())


async def list_chunks(request: Request) -> Response:
    """Answer with the chunks of memory, or of some namespaces or a session."""
    session = request.query_params.get("session")
    found = await _memory(request).chunks(namespaces=_namespaces(request), session=session)
    places = views.places(await _memory(request).extents(namespaces=_namespaces(request)))
    chunks = [views.chunk_summary(one, places.get(one.id, "")) for one in found]
    return json_response(wire.ChunkList(chunks=chunks).model_dump())


async def chunk(request: Request) -> Response:
    """Answer with all that is known of a chunk."""
    name = str(request.path_params["id"]).removeprefix("c")
    if not (name.isascii() and name.isdecimal() and len(name) < 19):
        raise BadRequest(
            f"reading the chunk {request.path_params['id'][:100]!r}: that is no chunk's id", hint="e.g. c3"
        )
    return json_response(views.card(await _memory(request).chunk(int(name))).model_dump())


async def history(request: Request) -> Response:
    """Answer with where a turn, a chunk or a statement comes from."""
    name = request.path_params["id"]
    return json_response(views.history(name, await _memory(request).history(name)).model_dump())


async def keep_both(request: Request) -> Response:
    """Take back that a statement supersedes another one."""
    body = parse(wire.KeepBothRequest, await read_json(request))
    memory = _memory(request)
    await memory.keep_both(body.newer, body.older)
    return json_response(views.history(body.newer, await memory.history(body.newer)).model_dump())


async def forget(request: Request) -> Response:
    """Forget turns with all that was made of them, or say what would go."""
    body = parse(wire.ForgetRequest, await read_json(request))
    selector = Selector(
        ids=tuple(body.ids),
        session=body.session,
        query=body.query,
        after_s=body.after_s,
        before_s=body.before_s,
        namespaces=None if body.namespaces is None else tuple(body.namespaces),
        limit=body.limit,
    )
    service = service_of(request)
    return one_line(
        lambda: _forget(service, selector, dry_run=body.dry_run),
        lambda error: wire.Forgotten(kind="error", error=error),
    )


async def _forget(service: Service, selector: Selector, *, dry_run: bool) -> wire.Forgotten:
    done = await service.memory.forget(selector, dry_run=dry_run)
    if done.is_done:
        service.chat_memory.forget()
    stored = {one.session for one in (await service.list_sessions()).sessions}
    return views.forgotten(done, sorted({turn.source for turn in done.turns} & stored))


async def compact(request: Request) -> Response:
    """Give the disk back what memory doesn't need."""
    memory = _memory(request)

    async def work() -> wire.MemoryStats:
        return views.stats(await memory.compact())

    return one_line(work, lambda error: wire.MemoryStats(kind="error", error=error))


async def export(request: Request) -> Response:
    """Answer with every turn, one a line, as `POST /memory/import` takes it."""
    memory, namespaces = _memory(request), _namespaces(request)

    async def lines() -> AsyncIterator[bytes]:
        async for line in memory.export(namespaces=namespaces):
            yield line.encode("utf-8", "replace") + b"\n"

    def on_error(error: Exception) -> bytes:
        return dump({"error": as_ours(error).to_wire()}) + b"\n"

    return EventStream(  # type: ignore[return-value]  # an ASGI app, as Starlette allows
        lines(), media_type="application/x-ndjson", keepalive=b"\n", on_error=on_error
    )


async def import_memory(request: Request) -> Response:
    """Take in what an export gave."""
    service = service_of(request)
    path = await spool(request.stream(), service.paths.cache_dir)

    async def work() -> wire.Remembered:
        return views.remembered(await service.memory.import_(_lines_of(path)), None)

    return one_line(
        work, lambda error: wire.Remembered(kind="error", error=error), cleanup=lambda: path.unlink(missing_ok=True)
    )


async def _lines_of(path: Path) -> AsyncIterator[str]:
    """Give a file's lines. Raises TranscriptError for one that is too long or no UTF-8."""
    number = 0
    with path.open("rb") as file:
        while lines := await asyncio.to_thread(_some_lines, file.readline):
            for line in lines:
                number += 1
                if len(line) > BODY_LIMIT_BYTES:
                    raise TranscriptError(
                        f"importing memory, line {number}: it is over {BODY_LIMIT_BYTES:,} bytes",
                        hint="it takes what `akashic mem export` wrote",
                    )
                try:
                    yield line.decode("utf-8")
                except UnicodeDecodeError as error:
                    raise TranscriptError(
                        f"importing memory, line {number}: it is no UTF-8 at byte {error.start}",
                        hint="it takes what `akashic mem export` wrote",
                    ) from error


def _some_lines(read_line: Callable[[int], bytes]) -> list[bytes]:
    out: list[bytes] = []
    size_bytes = 0
    while size_bytes < _READ_BYTES and (line := read_line(BODY_LIMIT_BYTES + 1)):
        out.append(line)
        size_bytes += len(line)
    return out
