"""The request border: who may ask, and errors in the shape that the caller's API uses."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from akashic_daemon import request_ids
from akashic_daemon.errors import AkashicError, Cancelled, Forbidden, Overloaded, PromptTooLong, Unauthorized

logger = logging.getLogger("akashic.http")
_ANTHROPIC_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_OVERLOADED = 529
"""What Anthropic's clients know an overloaded server by."""
_RETRY_AFTER_S = 5
SKIPPED_BYTES = 64 * 1024 * 1024
"""So much of the body of a refused request is read and thrown away."""
_ELSEWHERE = 300
IS_KNOWN = "is_known"
"""What a request's state says under this name: whether it comes from the daemon's own user, not from just anybody."""
_OPEN_PATHS = frozenset({"/healthz"})
_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def wire_error(path: str, error: AkashicError) -> dict[str, Any]:
    """Return an error's body: Anthropic's shape below /v1/messages, OpenAI's elsewhere below /v1, ours elsewhere."""
    if _is_anthropics(path):
        return _anthropic_error(error)
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


def _anthropic_error(error: AkashicError) -> dict[str, Any]:
    message, kind = str(error), _ANTHROPIC_KINDS.get(error.http_status)
    if isinstance(error, PromptTooLong) and "n_ctx" in error.details:
        # Clients know by these words that they have to compact their history.
        numbers = error.details
        message = f"prompt is too long: {numbers['n_prompt_tokens']} tokens > {numbers['n_ctx']} maximum; {message}"
    kind = kind or ("invalid_request_error" if error.http_status < 500 else "api_error")
    body = {"type": kind, "message": message, "code": error.code, **error.details}
    return {"type": "error", "error": body, "request_id": request_ids.current()}


def error_response(path: str, error: AkashicError) -> Response:
    """Return an error as a response; one that passes says when to ask again."""
    status, headers = error.http_status, {}
    if status in (429, 503):
        headers["retry-after"] = str(math.ceil(error.details.get("retry_after_s") or _RETRY_AFTER_S))
    if isinstance(error, Overloaded) and _is_anthropics(path):
        status = _OVERLOADED
    return json_response(wire_error(path, error), status, headers)


def _is_anthropics(path: str) -> bool:
    return path == "/v1/messages" or path.startswith("/v1/messages/")


def json_response(data: Any, status_code: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a response of JSON."""
    return Response(dump(data), status_code, headers, media_type="application/json")


class Activity:
    """Knows when somebody last wanted something; asking for the health doesn't count."""

    def __init__(self) -> None:
        self._in_flight = 0
        self._last_s = time.monotonic()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request as long as it runs."""
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
            self._last_s = time.monotonic()

    def idle_s(self) -> float:
        """Return for how long no request has run; 0 while one does."""
        return 0.0 if self._in_flight else time.monotonic() - self._last_s


class Border:
    """Outermost layer: checks Host, Origin and token on TCP, and turns every exception into an answer.

    Requests on the Unix socket are trusted: its folder is 0700. They are known by the address that they came in on,
    never by a missing client address: a TCP client that has reset its connection has none either.
    """

    def __init__(
        self, app: ASGIApp, *, token: str | None, hosts: frozenset[str], socket: str, activity: Activity
    ) -> None:
        assert token is None or token, "an empty token would let everybody in"
        self._app = app
        self._token = token
        self._hosts = hosts
        self._socket = socket
        self._activity = activity

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with nullcontext() if scope["path"] in _OPEN_PATHS else self._activity.request():
            await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False
        path, name = scope["path"], request_ids.begin().encode()
        rest = _Rest(scope, receive)

        async def watched(message: Any) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message = {**message, "headers": [*message["headers"], *_names(path, name)]}
                if message["status"] >= _ELSEWHERE or any(key == b"content-length" for key, _ in message["headers"]):
                    await rest.skip()  # a stream has no length, and read its body before
                    if not rest.is_over:
                        message["headers"].append((b"connection", b"close"))
            await send(message)

        try:
            is_local = self._came_by_socket(scope)
            if not is_local:
                self._check(scope)
            scope.setdefault("state", {})[IS_KNOWN] = is_local or self._token is not None
            await self._app(scope, rest.receive, watched)
        except asyncio.CancelledError:
            # The daemon ends; without an answer of ours uvicorn would say 500. The rest of the body is not waited for.
            if started:
                raise
            error = Cancelled("the daemon is stopping", hint="send the request again")
            await error_response(path, error)(scope, receive, send)
        except ClientDisconnect:
            logger.info("%s: the client left before its request was complete", _line(scope))
        except AkashicError as error:
            if started:
                raise
            await error_response(path, error)(scope, rest.receive, watched)
        except Exception as error:
            logger.exception("%s failed", _line(scope))
            if not started:
                internal = AkashicError(f"an internal error: {type(error).__name__}", hint="see `akashic daemon logs`")
                await error_response(path, internal)(scope, rest.receive, watched)

    def _came_by_socket(self, scope: Scope) -> bool:
        server = scope.get("server")
        return server is not None and tuple(server) == (self._socket, None)

    def _check(self, scope: Scope) -> None:
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        host = _hostname(headers.get("host", ""))
        if host not in self._hosts:
            raise Forbidden(f"the Host header names {host!r}", hint=f"use one of {', '.join(sorted(self._hosts))}")
        origin = headers.get("origin")
        if origin is not None and _hostname(origin.partition("://")[2]) not in self._hosts:
            raise Forbidden(f"requests from the web page {origin!r} are not served", hint="ask from this machine")
        if self._token is None or scope["path"] in _OPEN_PATHS:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            given = headers.get("x-api-key", "")
        if not hmac.compare_digest(given.strip().encode(), self._token.encode()):
            raise Unauthorized(
                "the bearer token is missing or wrong", hint="it stands in the file `token` of the store folder"
            )


def _line(scope: Scope) -> str:
    """Return what was asked for, on one line: a path may hold line breaks, and what follows one would pass for an entry."""
    return f"{scope['method']} {ascii(scope['path'])[1:-1]}"


def _names(path: str, name: bytes) -> list[tuple[bytes, bytes]]:
    """Return the headers that name a request as the API's clients look for it."""
    return [(b"x-request-id", name), *([(b"request-id", name)] if _is_anthropics(path) else [])]


class _Rest:
    """The part of a body that nobody has read.

    It is read before a refusal and thrown away, so that the client sees why; not without end, and not from who asked
    whether to send it. That one may send it or not, so that nothing else can be asked on its connection.
    """

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._receive = receive
        self._is_asked_for = any(name == b"expect" for name, _ in scope["headers"])
        self.is_over = False

    async def receive(self) -> Message:
        """Pass on what comes."""
        message = await self._receive()
        self._is_asked_for = False
        self.is_over = self.is_over or not message.get("more_body", False)
        return message

    async def skip(self) -> None:
        """Read to the end of the body, if that isn't too far."""
        left_bytes = SKIPPED_BYTES
        while not self.is_over and not self._is_asked_for and left_bytes > 0:
            left_bytes -= len((await self.receive()).get("body", b""))


def _hostname(authority: str) -> str:
    """Return the host of `host`, `host:port`, `[v6]` or `[v6]:port`, in lower case."""
    if authority.startswith("["):
        return authority[1:].partition("]")[0].lower()
    return authority.partition(":")[0].lower()


def dump(data: Any) -> bytes:
    """Return compact JSON, in UTF-8 that any client can read: a lone surrogate becomes `?`."""
    return _ENCODE(data).encode("utf-8", "replace")
