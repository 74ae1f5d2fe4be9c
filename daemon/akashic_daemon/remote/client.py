"""Asking a remote server: retries before anything came, limits that name themselves, and an answer as it is streamed."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, closing
from dataclasses import dataclass
from typing import Any

import httpx

from akashic_daemon.errors import (
    AkashicError,
    BadRequest,
    NotFound,
    Overloaded,
    PromptTooLong,
    UpstreamError,
    UpstreamTimeout,
)
from akashic_daemon.remote.endpoint import Endpoint
from akashic_daemon.remote.transport import DirectTransport
from akashic_daemon.remote.waits import Waits

logger = logging.getLogger("akashic.remote")
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 8.0
_LONGEST_ASKED_S = 7 * 86400.0
_QUOTED_CHARS = 300
_LONGEST_ERROR_BYTES = 65536
_LONGEST_EVENT_BYTES = 64 << 20
_TOO_LONG = ("context length", "context_length", "context size", "maximum context", "too long", "exceed_context")


@dataclass(frozen=True, slots=True)
class Limits:
    """In seconds: to connect, to the first piece of an answer, between two pieces, and for trying again in all."""

    connect_s: float = 5.0
    first_token_s: float = 600.0
    silence_s: float = 120.0
    retry_s: float = 15.0


class RemoteClient:
    """Speaks with one endpoint over kept connections."""

    def __init__(
        self,
        endpoint: Endpoint,
        limits: Limits,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.endpoint = endpoint
        self._limits = limits
        self._sleep = sleep
        timeout = httpx.Timeout(limits.silence_s, connect=limits.connect_s, read=None, pool=None)
        self._http = httpx.AsyncClient(
            transport=transport or DirectTransport(), timeout=timeout, trust_env=False, follow_redirects=False
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def models(self) -> list[Mapping[str, Any]]:
        """Return what the server says of its models. Raises UpstreamError."""
        body = await self._json("GET", "/models", None)
        found = body.get("data")
        if not isinstance(found, list) or not all(isinstance(m, dict) and isinstance(m.get("id"), str) for m in found):
            raise self._nonsense("its list of models", json.dumps(body))
        return found

    async def ask(self, path: str, body: bytes) -> Mapping[str, Any]:
        """Post a request and return its JSON object. Raises UpstreamError, NotFound where there is no such route."""
        return await self._json("POST", path, body)

    async def stream(
        self, path: str, body: bytes, *, session: str | None = None
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        """Post a request and give the objects of its event stream.

        Tries again, with growing pauses or those that the server asks for, while nothing has come; raises UpstreamError,
        UpstreamTimeout, Overloaded, PromptTooLong or BadRequest after that. Closing it cancels the request there.
        """
        headers = {"accept": "text/event-stream", "accept-encoding": "identity"}
        if session and self.endpoint.session_header:
            headers[self.endpoint.session_header] = session
        async with self._answer("POST", path, body, headers) as response, aclosing(self._events(response)) as events:
            async for event in events:
                yield event

    async def _json(self, method: str, path: str, body: bytes | None) -> Mapping[str, Any]:
        async with self._answer(method, path, body, {"accept": "application/json"}) as response:
            data = await self._read(response)
        try:
            found = json.loads(data)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise self._nonsense(f"the answer of {path}", data.decode("utf-8", "replace"))
        return found

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> AsyncGenerator[httpx.Response, None]:
        """Give a response whose status is good."""
        spent_s, pause_s = 0.0, _FIRST_PAUSE_S
        while True:
            response: httpx.Response | None = None
            try:
                response = await self._sent(method, path, body, headers)
                if response.is_success:
                    yield response
                    return
                error = await self._refusal(response)
                wait_s = max(pause_s, _asked_pause(response)) if response.status_code in _PASSING else None
            except httpx.TransportError as failure:
                if response is not None:
                    raise  # while the answer was read; who reads it says so
                error, wait_s = self._unreached(failure), pause_s
            finally:
                if response is not None:
                    await response.aclose()
            if wait_s is None or spent_s + wait_s > self._limits.retry_s:
                raise error
            logger.warning("%s; trying again in %.2f s", error.message, wait_s)
            await self._sleep(wait_s)
            spent_s, pause_s = spent_s + wait_s, min(pause_s * 2, _LONGEST_PAUSE_S)

    async def _sent(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> httpx.Response:
        key = await asyncio.to_thread(self.endpoint.key) if self.endpoint.key_file else self.endpoint.key()
        every = {**headers, **({"authorization": f"Bearer {key}"} if key else {})}
        if body is not None:
            every["content-type"] = "application/json"
        request = self._http.build_request(method, self.endpoint.url + path, content=body, headers=every)
        limit_s = self._limits.first_token_s
        try:
            return await asyncio.wait_for(self._http.send(request, stream=True), limit_s)
        except TimeoutError as error:
            raise self._too_slow("no answer began", "remote.first_token_s", limit_s) from error

    async def _events(self, response: httpx.Response) -> AsyncGenerator[Mapping[str, Any], None]:
        """Give the data of server-sent events; ends at [DONE]."""
        limit_s, name = self._limits.first_token_s, "remote.first_token_s"
        rest, count = b"", 0
        assert isinstance(response.stream, httpx.AsyncByteStream)
        pieces = aiter(response.stream)  # aiter_raw does no more than count bytes
        with closing(Waits()) as waits:
            while True:
                try:
                    piece = await waits.limited(anext(pieces), limit_s)
                except StopAsyncIteration:
                    break
                except TimeoutError as error:
                    raise self._too_slow(f"nothing came after {count} pieces", name, limit_s) from error
                except httpx.TransportError as error:
                    raise self._cut(count, error) from error
                limit_s, name = self._limits.silence_s, "remote.silence_s"
                *lines, rest = (rest + piece).split(b"\n")
                if len(rest) > _LONGEST_EVENT_BYTES:
                    raise self._nonsense("an event of its answer", rest[:_QUOTED_CHARS].decode("utf-8", "replace"))
                for line in lines:
                    if not line.startswith(b"data:"):
                        continue  # comments that keep the connection, names of events, blanks
                    data = line[5:].strip()
                    if data == b"[DONE]":
                        return
                    count += 1
                    yield self._event(data)
        raise self._cut(count, None)

    def _event(self, data: bytes) -> Mapping[str, Any]:
        try:
            found = json.loads(data)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise self._nonsense("an event of its answer", data.decode("utf-8", "replace"))
        if found.get("error"):
            raise UpstreamError(f"{self.endpoint.url} broke off: {_words(found)}", hint="see the server's log")
        return found

    async def _read(self, response: httpx.Response) -> bytes:
        try:
            return await asyncio.wait_for(response.aread(), self._limits.silence_s)
        except TimeoutError as error:
            raise self._too_slow("the answer didn't end", "remote.silence_s", self._limits.silence_s) from error
        except httpx.TransportError as error:
            raise self._cut(0, error) from error

    async def _refusal(self, response: httpx.Response) -> AkashicError:
        """Return the error that a status stands for."""
        data = (await self._read(response))[:_LONGEST_ERROR_BYTES]
        try:
            words = _words(json.loads(data))
        except ValueError:
            words = " ".join(data.decode("utf-8", "replace").split())[:_QUOTED_CHARS]
        status, url = response.status_code, self.endpoint.url
        said = f"{url} answered {status}: {words or 'nothing more'}"
        if status in (401, 403):
            return UpstreamError(said, hint="check the key: `akashic model add --remote` has --key-env and --key-file")
        if status == 404:
            return NotFound(said, hint="check the URL and the model's name there: `akashic model show`")
        if status in (429, 503):
            return Overloaded(said, hint="send the request again later", retry_after_s=_asked_pause(response) or None)
        if status in (400, 413, 422) and any(mark in words.lower() for mark in _TOO_LONG):
            return PromptTooLong(said, hint="shorten the history, or give the window with `akashic model add --window`")
        if status in (400, 413, 422):
            return BadRequest(said, hint="the remote server takes no such request")
        return UpstreamError(said, hint="see the server's log")

    def _unreached(self, failure: httpx.TransportError) -> AkashicError:
        if isinstance(failure, httpx.ConnectTimeout):
            return self._too_slow("no connection came about", "remote.connect_s", self._limits.connect_s)
        said = f"asking {self.endpoint.url}: {failure or type(failure).__name__}"
        return UpstreamError(said, hint="is the server running? the session goes on when it is back")

    def _cut(self, count: int, failure: httpx.TransportError | None) -> UpstreamError:
        why = f": {failure or type(failure).__name__}" if failure is not None else " without its end"
        return UpstreamError(
            f"the answer of {self.endpoint.url} broke off after {count} pieces{why}",
            hint="what came is kept; ask again when the server is back",
        )

    def _too_slow(self, what: str, setting: str, limit_s: float) -> UpstreamTimeout:
        return UpstreamTimeout(f"{self.endpoint.url}: {what} within {limit_s:g} s", hint=f"raise {setting}")

    def _nonsense(self, what: str, text: str) -> UpstreamError:
        return UpstreamError(
            f"{self.endpoint.url}: {what} can't be read: {text[:_QUOTED_CHARS]!r}",
            hint="is it an OpenAI-compatible server?",
        )


def _asked_pause(response: httpx.Response) -> float:
    """Return the seconds that a server wants to be left alone; 0 when it doesn't say, or says a date, or nonsense."""
    try:
        asked_s = float(response.headers.get("retry-after", "0"))
    except ValueError:
        return 0.0
    return asked_s if 0.0 <= asked_s <= _LONGEST_ASKED_S else 0.0


def _words(body: Any) -> str:
    """Return the message of an error, whichever shape it has."""
    error = body.get("error", body) if isinstance(body, dict) else body
    message = (error.get("message") or error.get("detail")) if isinstance(error, dict) else error
    return " ".join(str(message or "").split())[:_QUOTED_CHARS]
