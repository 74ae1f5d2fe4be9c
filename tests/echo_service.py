"""A service without engine or store, for tests of the border: it says a request's last words back, one by one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from akashic_daemon.config import load
from akashic_daemon.paths import find_paths
from akashic_daemon.protocol.native import ImportEvent, Reuse, Timing
from akashic_daemon.schedule.events import Finished, GenerationEvent, GenerationInput, Started, TextDelta
from akashic_daemon.service import Service

CHAT = "/v1/chat/completions"
Message = MutableMapping[str, Any]


class EchoService(Service):
    """Echoes. `script` overrides what comes after Started; `requests` and `closed` tell what happened."""

    def __init__(self, home: Path, script: Callable[[], AsyncGenerator[GenerationEvent, None]] | None = None) -> None:
        super().__init__(load(home / "config.toml", env={}), find_paths({"AKASHIC_HOME": str(home)}))
        self.requests: list[GenerationInput] = []
        self.started = asyncio.Event()
        self.closed = 0
        self._script = script

    async def generate(self, request: GenerationInput) -> AsyncGenerator[GenerationEvent, None]:
        """Answer with the last message's words."""
        self.requests.append(request)
        text = request.messages[-1].content if request.messages else request.text or ""
        words = [word + " " for word in text.split()]
        try:
            self.started.set()
            if self._script is None:
                yield Started("req-1", "s", "echo", 7, Reuse(reused_tokens=4, computed_tokens=3))
                for word in words:
                    yield TextDelta(word, 1)
                yield finished("".join(words), len(words))
            else:
                async for event in self._script():
                    yield event
        finally:
            self.closed += 1

    async def import_transcript(
        self,
        path: Path,
        *,
        format: str | None,  # noqa: A002 - as in Service
        name: str | None,
        label: str | None = None,
    ) -> AsyncGenerator[ImportEvent, None]:
        """Say how many bytes were spooled."""
        del format, name, label
        yield ImportEvent(kind="done", read_bytes=path.stat().st_size)


def finished(text: str, tokens: int, reason: Any = "stop") -> Finished:
    """Return the end of an answer that reused 4 of 7 prompt tokens."""
    return Finished(reason, text, 7, tokens, Reuse(reused_tokens=4, computed_tokens=3), Timing())


class Caller:
    """One HTTP request to an ASGI app by hand. It comes over the Unix socket unless `server` says otherwise.

    body: parts of the body; None stands for a client that breaks off. `left` makes it leave.
    """

    def __init__(self, service: Service, path: str, body: list[bytes | None], **scope: Any) -> None:
        self.sent: list[Message] = []
        self.left = asyncio.Event()
        self._body = body
        self.scope: dict[str, Any] = {
            "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": [], "client": None, "server": (str(service.paths.socket), None), "scheme": "http",
            "http_version": "1.1", "root_path": "", **scope,
        }  # fmt: skip

    async def receive(self) -> Message:
        """Give the body, then wait for the client to leave."""
        if self._body:
            part = self._body.pop(0)
            if part is not None:
                return {"type": "http.request", "body": part, "more_body": bool(self._body)}
        else:
            await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Keep what the client gets."""
        self.sent.append(message)

    @property
    def status(self) -> int:
        """The answer's status."""
        return int(self.sent[0]["status"])

    @property
    def text(self) -> str:
        """The answer's body so far."""
        return b"".join(m.get("body", b"") for m in self.sent).decode()


def run(check: Callable[[], Awaitable[None]], limit_s: float = 60.0) -> None:
    """Run an async test; it fails when it hangs."""

    async def bounded() -> None:
        async with asyncio.timeout(limit_s):
            await check()

    asyncio.run(bounded())
