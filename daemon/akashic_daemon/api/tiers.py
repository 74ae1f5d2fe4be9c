"""Native routes about the tiers. Wire models and a table: protocol/tiers.py."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from akashic_daemon.api.app_state import service_of
from akashic_daemon.api.body import parse, read_json
from akashic_daemon.api.border import json_response
from akashic_daemon.api.stream import one_line
from akashic_daemon.errors import BadRequest
from akashic_daemon.protocol.native import StoreReport
from akashic_daemon.protocol.tiers import HintRequest, Prefetched, Pruned, PruneRequest

_PREFIX = "/akashic/v1"


def routes() -> list[Route]:
    """Return the routes."""
    session = f"{_PREFIX}/sessions/{{session}}"
    return [
        Route(f"{_PREFIX}/cache/tiers", tiers, methods=["GET"]),
        Route(f"{_PREFIX}/cache/verify", verify, methods=["GET"]),
        Route(f"{_PREFIX}/cache/prune", prune, methods=["POST"]),
        Route(f"{session}/prefetch", prefetch, methods=["POST"]),
        Route(f"{session}/hint", hint, methods=["POST"]),
    ]


async def tiers(request: Request) -> Response:
    """Answer with TierReport."""
    return json_response((await service_of(request).upkeep.report()).model_dump())


async def verify(request: Request) -> Response:
    """Look for damage in the stores, and mend it when asked to."""
    fix = request.query_params.get("fix", "0")
    if fix not in ("0", "1"):
        raise BadRequest(f"fix is {fix!r}", hint="fix=1 mends, fix=0 only looks")
    service = service_of(request)
    return one_line(lambda: service.verify_store(fix=fix == "1"), lambda error: StoreReport(kind="error", error=error))


async def prune(request: Request) -> Response:
    """Remove blocks, or say which would go."""
    body = parse(PruneRequest, await read_json(request))
    service = service_of(request)
    return one_line(lambda: service.prune(body), lambda error: Pruned(kind="error", error=error))


async def prefetch(request: Request) -> Response:
    """Bring a session's KV into RAM."""
    service, session = service_of(request), request.path_params["session"]
    return one_line(lambda: service.prefetch(session), lambda error: Prefetched(kind="error", error=error))


async def hint(request: Request) -> Response:
    """Expect a session's next request."""
    body = parse(HintRequest, await read_json(request))
    return json_response((await service_of(request).hint(request.path_params["session"], body)).model_dump())
