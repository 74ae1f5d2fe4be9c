"""The request border: who may ask, and errors in the shape that the caller's API uses."""

from __future__ import annotations

import hmac
import json
import logging
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from akashic_daemon.errors import AkashicError, Forbidden, Unauthorized

logger = logging.getLogger("akashic.http")
_OPEN_PATHS = frozenset({"/healthz"})


def wire_error(path: str, error: AkashicError) -> dict[str, Any]:
    """Return an error's body: OpenAI's shape below /v1, ours elsewhere."""
    if not path.startswith("/v1/"):
        return {"error": error.to_wire()}
    kind = "invalid_request_error" if error.http_status < 500 else "server_error"
    numbers = {k: v for k, v in error.details.items() if k != "param"}
    return {
        "error": {
            "message": str(error),
            "type": kind,
            "code": error.code,
            "param": error.details.get("param"),
            **numbers,
        }
    }


def error_response(path: str, error: AkashicError) -> JSONResponse:
    """Return an error as a response."""
    return JSONResponse(wire_error(path, error), status_code=error.http_status)


class Border:
    """Outermost layer: checks Host, Origin and token on TCP, and turns every exception into an answer.

    Requests on the Unix socket (no client address) are trusted: its folder is 0700.
    """

    def __init__(self, app: ASGIApp, *, token: str | None, hosts: frozenset[str]) -> None:
        self._app = app
        self._token = token
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def watched(message: Any) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        path = scope["path"]
        try:
            if scope.get("client") is not None:
                self._check(scope)
            await self._app(scope, receive, watched)
        except AkashicError as error:
            if started:
                raise
            await error_response(path, error)(scope, receive, send)
        except Exception as error:
            logger.exception("%s %s failed", scope["method"], path)
            if not started:
                internal = AkashicError(f"an internal error: {type(error).__name__}", hint="see `akashic daemon logs`")
                await error_response(path, internal)(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        host = headers.get("host", "").rsplit(":", 1)[0].strip("[]").lower()
        if host not in self._hosts:
            raise Forbidden(f"the Host header names {host!r}", hint=f"use one of {', '.join(sorted(self._hosts))}")
        origin = headers.get("origin")
        if origin is not None and origin.split("://")[-1].rsplit(":", 1)[0].strip("[]").lower() not in self._hosts:
            raise Forbidden(f"requests from the web page {origin} are not served")
        if self._token is None or scope["path"] in _OPEN_PATHS:
            return
        given = headers.get("authorization", "").removeprefix("Bearer ").strip() or headers.get("x-api-key", "")
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            raise Unauthorized(
                "the bearer token is missing or wrong", hint="it stands in the file `token` of the store folder"
            )


def dump(data: Any) -> bytes:
    """Return compact JSON."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
