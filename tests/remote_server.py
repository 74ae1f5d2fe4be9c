"""An OpenAI-compatible server made of a script, on httpx's mock transport: faults come where they are asked for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from akashic_daemon.remote.client import Limits, RemoteClient
from akashic_daemon.remote.endpoint import Endpoint

URL = "http://upstream.test/v1"
Answer = Callable[[httpx.Request], httpx.Response]


def text_piece(text: str, **more: Any) -> dict[str, Any]:
    """Return one piece of a streamed answer."""
    return {"choices": [{"index": 0, "delta": {"content": text}, **more}]}


def usage_piece(prompt: int, completion: int, cached: int | None) -> dict[str, Any]:
    """Return the piece that says what it took."""
    usage: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": completion}
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    return {"choices": [], "usage": usage}


class Stream(httpx.AsyncByteStream):
    """Server-sent events, bytes as they are, then what `after` says: "done", "cut" (the connection breaks) or "hang"."""

    def __init__(self, pieces: Sequence[Any], after: str = "done", *, split: int = 0) -> None:
        data = b"".join(p if isinstance(p, bytes) else b"data: %b\n\n" % json.dumps(p).encode() for p in pieces)
        data += b"data: [DONE]\n\n" if after == "done" else b""
        step = split or max(1, len(data))
        self._parts = [data[i : i + step] for i in range(0, len(data), step)]
        self._after = after
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            yield part
        if self._after == "cut":
            raise httpx.ReadError("connection reset")
        if self._after == "hang":
            await asyncio.Event().wait()

    async def aclose(self) -> None:
        self.closed = True


@dataclass
class Upstream:
    """Answers each request with the next of `answers`; the last one again and again."""

    answers: list[Answer]
    requests: list[httpx.Request] = field(default_factory=list)
    pauses_s: list[float] = field(default_factory=list)

    def client(self, endpoint: Endpoint, limits: Limits) -> RemoteClient:
        """Return a client of it; pauses are noted, not waited for."""

        async def sleep(seconds: float) -> None:
            self.pauses_s.append(seconds)

        return RemoteClient(endpoint, limits, transport=httpx.MockTransport(self._answer), sleep=sleep)

    def bodies(self) -> list[Mapping[str, Any]]:
        """Return what was asked."""
        return [json.loads(r.content) for r in self.requests if r.content]

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return self.answers[min(len(self.requests), len(self.answers)) - 1](request)


def streams(pieces: Sequence[Any], after: str = "done", *, split: int = 0) -> Answer:
    """Return an answer that streams."""
    return lambda _request: httpx.Response(200, stream=Stream(pieces, after, split=split))


def refuses(status: int, message: str = "no", **headers: str) -> Answer:
    """Return an answer that is an error."""
    return lambda _request: httpx.Response(status, json={"error": {"message": message}}, headers=headers)


def unreachable(request: httpx.Request) -> httpx.Response:
    """Break the connection before anything comes."""
    raise httpx.ConnectError("refused", request=request)
