"""Native routes about the context of sessions: programs, policies, scripts, explanations, the index.

Wire models and a table: protocol/context.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from akashic_daemon.api.app_state import service_of
from akashic_daemon.api.body import parse, read_json
from akashic_daemon.api.border import dump, json_response
from akashic_daemon.api.stream import EventStream, as_ours
from akashic_daemon.context.script import script
from akashic_daemon.context.service import ContextService
from akashic_daemon.errors import BadRequest
from akashic_daemon.protocol import context

_PREFIX = "/akashic/v1"
_TREE_DEPTH = 32


def routes() -> list[Route]:
    """Return the routes."""
    session = f"{_PREFIX}/sessions/{{session}}"
    return [
        Route(f"{session}/context", show, methods=["GET"]),
        Route(f"{session}/ops", edit, methods=["POST"]),
        Route(f"{session}/messages", append, methods=["POST"]),
        Route(f"{session}/policy", set_policy, methods=["PUT"]),
        Route(f"{session}/edit_reuse", set_edit_reuse, methods=["PUT"]),
        Route(f"{session}/script", run_script, methods=["POST"]),
        Route(f"{session}/explain", explain, methods=["GET"]),
        Route(f"{_PREFIX}/cache/tree", cache_tree, methods=["GET"]),
        Route(f"{_PREFIX}/policies", policies, methods=["GET"]),
    ]


def _service(request: Request) -> ContextService:
    return service_of(request).context


def _json(model: BaseModel) -> Response:
    return json_response(model.model_dump())


def _number(request: Request, name: str, default: int | None) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise BadRequest(f"{name} is {text!r}, which isn't a whole number", hint=f"e.g. {name}=3")
    return int(text)


async def show(request: Request) -> Response:
    """Answer with ContextView."""
    return _json(await _service(request).show(request.path_params["session"]))


async def edit(request: Request) -> Response:
    """Carry out operations at a session's end."""
    body = parse(context.OpsRequest, await read_json(request))
    return _json(await _service(request).edit(request.path_params["session"], body))


async def append(request: Request) -> Response:
    """Append a message."""
    body = parse(context.AppendRequest, await read_json(request))
    return _json(await _service(request).append(request.path_params["session"], body))


async def set_policy(request: Request) -> Response:
    """Set a session's policy."""
    body = parse(context.PolicyRequest, await read_json(request))
    return _json(await _service(request).set_policy(request.path_params["session"], body))


async def set_edit_reuse(request: Request) -> Response:
    """Say what an edited history of a session becomes."""
    body = parse(context.EditReuseRequest, await read_json(request))
    return _json(await _service(request).set_edit_reuse(request.path_params["session"], body))


async def run_script(request: Request) -> Response:
    """Run a script and stream its course."""
    body = parse(context.ScriptRequest, await read_json(request))
    service, session = _service(request), request.path_params["session"]

    async def lines() -> AsyncIterator[bytes]:
        async with aclosing(script(service, session, body)) as events:
            async for event in events:
                yield _line(event)

    def on_error(error: Exception) -> bytes:
        return _line(context.ScriptEvent(kind="error", error=as_ours(error).to_wire()))

    return EventStream(  # type: ignore[return-value]  # an ASGI app, as Starlette allows
        lines(), media_type="application/x-ndjson", keepalive=b"\n", on_error=on_error
    )


def _line(event: context.ScriptEvent) -> bytes:
    return dump(event.model_dump(exclude_defaults=True)) + b"\n"


async def explain(request: Request) -> Response:
    """Answer with Explanation."""
    turn = _number(request, "turn", None)
    return _json(await _service(request).explanation(request.path_params["session"], turn))


async def cache_tree(request: Request) -> Response:
    """Answer with CacheTree."""
    depth = _number(request, "depth", _TREE_DEPTH)
    assert depth is not None
    return _json(await _service(request).cache_tree(depth))


async def policies(request: Request) -> Response:
    """Answer with PolicyList."""
    return _json(await _service(request).policies())
