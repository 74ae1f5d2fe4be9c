"""Streaming answers: events are sent together when several are ready, silence is filled, and a client that leaves ends it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from akashic_daemon.api.border import dump
from akashic_daemon.errors import AkashicError

logger = logging.getLogger("akashic.http")
KEEPALIVE_S = 10.0
CLIENT_CLOSED = 499
"""Status of an answer that nobody reads any more, for the log."""
_CANCEL_AGAIN_S = 1.0
_TOGETHER_S = 0.0005
"""What comes sooner after what was sent waits for what comes with it."""
_READ_AHEAD = 256
"""Chunks kept for a client that doesn't read; then the source waits, so a stalled reader costs no memory."""
T = TypeVar("T")


def as_ours(error: Exception) -> AkashicError:
    """Return what a client is told of an error in mid-stream; a foreign one is logged with its traceback."""
    if isinstance(error, AkashicError):
        return error
    logger.error("a stream failed", exc_info=error)
    return AkashicError(f"an internal error: {type(error).__name__}", hint="see `akashic daemon logs`")


async def pump(
    source: AsyncIterator[T],
    queue: asyncio.Queue[T | BaseException | None],
    at_once: Callable[[T], Awaitable[bool]],
) -> None:
    """Move a source's items into a queue, but those that `at_once` takes; ends with None, or with the exception."""
    try:
        async for item in source:
            if not await at_once(item):
                await queue.put(item)
    except Exception as error:  # noqa: BLE001 - handed over, not swallowed
        await queue.put(error)
    else:
        await queue.put(None)
    finally:
        close = getattr(source, "aclose", None)
        if close is not None:
            await close()


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream:
    """A response made of `source`'s chunks.

    The first item is awaited before the headers go out, so that an error still gets its status. `on_error` words what
    fails later. `keepalive` is sent after each 10 s of silence, also before the first item. `cleanup` runs at the end
    however it came, even when the client had left before the source began.
    """

    def __init__(
        self,
        source: AsyncIterator[bytes],
        *,
        media_type: str,
        keepalive: bytes | None,
        on_error: Callable[[Exception], bytes],
        headers: dict[str, str] | None = None,
        cleanup: Callable[[], None] | None = None,
    ) -> None:
        self._source = source
        self._media_type = media_type
        self._keepalive = keepalive
        self._on_error = on_error
        self._headers = headers or {}
        self._cleanup = cleanup
        self._sent_s = 0.0
        self._is_waiting = False
        """Whether the sender has begun, and has nothing to send."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, and stop the source when the client leaves."""
        queue: asyncio.Queue[bytes | BaseException | None] = asyncio.Queue(_READ_AHEAD)
        loop = asyncio.get_running_loop()
        self._sent_s = loop.time()

        async def at_once(chunk: bytes) -> bool:
            """Send what comes alone without the way through the queue, which takes another turn of the loop."""
            if not self._is_waiting or not queue.empty() or loop.time() - self._sent_s < _TOGETHER_S:
                return False
            self._sent_s = loop.time()
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            return True

        pumping = asyncio.create_task(pump(self._source, queue, at_once))
        sending = asyncio.create_task(self._send_all(queue, send))
        leaving = asyncio.create_task(wait_for_disconnect(receive))
        filling = asyncio.create_task(self._fill_silence(queue))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            for task in (sending, leaving, pumping, filling):
                task.cancel()
            try:
                # A source may lose a cancellation that comes just when what it waits for is there (asyncio.wait_for does).
                while not pumping.done():
                    pumping.cancel()
                    await asyncio.wait({pumping}, timeout=_CANCEL_AGAIN_S)
                if not pumping.cancelled():
                    pumping.exception()
            finally:
                if self._cleanup is not None:
                    self._cleanup()

    async def _send_all(self, queue: asyncio.Queue[bytes | BaseException | None], send: Send) -> None:
        started = False
        while True:
            self._is_waiting = started
            item = await queue.get()
            self._is_waiting = False
            chunks: list[bytes] = []
            last = False
            while True:
                if isinstance(item, Exception):
                    if not started and not chunks:
                        raise item
                    chunks.append(self._on_error(item))
                    last = True
                elif isinstance(item, bytes):
                    chunks.append(item)
                else:
                    last = True
                if last or queue.empty():
                    break
                item = queue.get_nowait()
            if not started:
                started = True
                await send(self._start())
            self._sent_s = asyncio.get_running_loop().time()
            await send({"type": "http.response.body", "body": b"".join(chunks), "more_body": not last})
            if last:
                return

    async def _fill_silence(self, queue: asyncio.Queue[bytes | BaseException | None]) -> None:
        """Queue the keepalive whenever nothing was sent for a while; one timer a silence, not one a token."""
        loop = asyncio.get_running_loop()
        while True:
            left_s = self._sent_s + KEEPALIVE_S - loop.time()
            if left_s > 0:
                await asyncio.sleep(left_s)
                continue
            self._sent_s = loop.time()
            if queue.empty():
                queue.put_nowait(self._keepalive or b"")

    def _start(self) -> dict[str, object]:
        headers = {"content-type": self._media_type, "cache-control": "no-cache", **self._headers}
        return {
            "type": "http.response.start",
            "status": 200,
            "headers": [(k.encode(), v.encode()) for k, v in headers.items()],
        }


def one_line(
    work: Callable[[], Awaitable[BaseModel]],
    on_error: Callable[[dict[str, Any]], BaseModel],
    *,
    cleanup: Callable[[], None] | None = None,
) -> Response:
    """Answer with one line of NDJSON when the work is done: it takes its time, and a client waits as long.

    on_error: words an error in its wire form.
    """

    async def lines() -> AsyncIterator[bytes]:
        yield dump((await work()).model_dump()) + b"\n"

    return EventStream(  # type: ignore[return-value]  # an ASGI app, as Starlette allows
        lines(),
        media_type="application/x-ndjson",
        keepalive=b"\n",
        on_error=lambda error: dump(on_error(as_ours(error).to_wire()).model_dump()) + b"\n",
        cleanup=cleanup,
    )


async def until_gone(receive: Receive, work: Awaitable[T]) -> T | None:
    """Await `work`, cancelling it when the client leaves; None then."""
    task = asyncio.ensure_future(work)
    leaving = asyncio.create_task(wait_for_disconnect(receive))
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        leaving.cancel()
        if not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
