"""The ASGI application: routes and the border round them."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from akashic_daemon.api import (
    anthropic,
    completions,
    context,
    embeddings,
    memory,
    memory_watch,
    metrics,
    native,
    openai,
    openapi,
    responses,
    tiers,
)
from akashic_daemon.api.border import Activity, Border, error_response
from akashic_daemon.errors import AkashicError, NotFound, WrongMethod
from akashic_daemon.service import Service

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})


# Paths come from the scope: `request.url` is made of the Host header, which may say anything.


async def _our_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, AkashicError)
    return error_response(request.scope["path"], error)


async def _no_route(request: Request, _error: Exception) -> Response:
    return error_response(
        request.scope["path"], NotFound(f"there is no route {request.method} {request.scope['path']}")
    )


async def _wrong_method(request: Request, _error: Exception) -> Response:
    """Answer 405. `Allow` is gathered here: a path has a route for each method, and Starlette names the first one's.

    A path that stands in a route as it is belongs to that one, though a name in another could read the same.
    """
    path = request.scope["path"]
    routes = [r for r in request.app.routes if isinstance(r, Route) and r.matches(request.scope)[0] is not Match.NONE]
    own = [route for route in routes if route.path == path] or routes
    allowed = ", ".join(sorted({method for route in own for method in route.methods or ()}))
    response = error_response(path, WrongMethod(f"{path} doesn't take {request.method}", hint=f"use {allowed}"))
    response.headers["Allow"] = allowed
    return response


def all_routes() -> list[Route]:
    """Return every route, in the order in which they are tried."""
    return [
        *native.routes(),
        *context.routes(),
        *tiers.routes(),
        *memory.routes(),
        *memory_watch.routes(),
        *metrics.routes(),
        *openapi.routes(),
        *openai.routes(),
        *completions.routes(),
        *anthropic.routes(),
        *responses.routes(),
        *embeddings.routes(),
    ]


def create_app(
    service: Service,
    *,
    token: str | None,
    allowed_hosts: Iterable[str] = LOOPBACK_HOSTS,
    activity: Activity | None = None,
) -> Starlette:
    """Return the application. `token` guards TCP; None serves it openly. `activity` learns of every request."""
    border = Middleware(
        Border,
        token=token,
        hosts=frozenset(host.lower() for host in allowed_hosts),
        socket=str(service.paths.socket),
        activity=activity or Activity(),
    )
    app = Starlette(
        routes=all_routes(),
        middleware=[border],
        exception_handlers={404: _no_route, 405: _wrong_method, AkashicError: _our_error},
    )
    app.state.service = service
    app.state.ignored_fields = set()
    return app
