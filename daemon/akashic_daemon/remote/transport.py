"""HTTP/1.1 to one server, with little between its socket and who reads: for answers whose every piece is waited for.

A transport of httpx, which keeps headers, URLs and errors; connections are asyncio's, the protocol is h11's. Idle ones are
kept and used again. No proxies and no HTTP/2: what arrives together is read together either way.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress

import h11
import httpx

_KEPT = 8
_READ_BYTES = 1 << 16
_PORTS = {"http": 80, "https": 443}


class DirectTransport(httpx.AsyncBaseTransport):
    """Connections to one server. Of httpx's timeouts those to connect and to write count; who reads has its own."""

    def __init__(self) -> None:
        self._idle: list[_Connection] = []
        self._tls: ssl.SSLContext | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and return its response when the headers are there. Raises httpx's TransportErrors."""
        limits = request.extensions.get("timeout", {})
        while self._idle:
            connection = self._idle.pop()
            if connection.is_fresh:
                break
            connection.close()
        else:
            connection = await self._connect(request.url, limits.get("connect"))
        try:
            head = await connection.ask(request, limits.get("write"))
        except BaseException:
            connection.close()
            raise
        return httpx.Response(head.status_code, headers=head.headers.raw_items(), stream=_Body(connection, self._idle))

    async def aclose(self) -> None:
        """Close the connections that nobody uses."""
        while self._idle:
            self._idle.pop().close()

    async def _connect(self, url: httpx.URL, limit_s: float | None) -> _Connection:
        if url.scheme == "https" and self._tls is None:
            self._tls = await asyncio.to_thread(httpx.create_ssl_context)  # reads hundreds of certificates
        tls = self._tls if url.scheme == "https" else None
        try:
            async with asyncio.timeout(limit_s):
                streams = await asyncio.open_connection(url.raw_host.decode(), url.port or _PORTS[url.scheme], ssl=tls)
        except TimeoutError as error:
            raise httpx.ConnectTimeout(f"connecting to {url.host}") from error
        except OSError as error:
            raise httpx.ConnectError(str(error)) from error
        return _Connection(*streams)


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT)
        self._is_over = False
        self._is_dry = False
        """Whether nothing can be made of what has come: only more bytes help."""

    @property
    def is_fresh(self) -> bool:
        """Whether the server hasn't closed it, as far as is known."""
        return not self._reader.at_eof() and not self._writer.is_closing()

    async def ask(self, request: httpx.Request, limit_s: float | None) -> h11.Response:
        """Send a request and return the head of its answer."""
        target = request.url.raw_path
        head = h11.Request(method=request.method, target=target, headers=request.headers.raw)
        with _as_httpx():
            for event in (head, h11.Data(data=await request.aread()), h11.EndOfMessage()):
                self._writer.write(self._http.send(event) or b"")
            try:
                async with asyncio.timeout(limit_s):
                    await self._writer.drain()
            except TimeoutError as error:
                raise httpx.WriteTimeout("sending the request") from error
            while True:
                answer = await self._event()
                if isinstance(answer, h11.Response):
                    return answer

    async def read(self) -> bytes:
        """Return more of the body, all that has come; empty at its end."""
        parts: list[bytes] = []
        with _as_httpx():
            while not self._is_over:
                event = self._http.next_event() if parts else await self._event()
                if event is h11.NEED_DATA:
                    self._is_dry = True
                    break
                if isinstance(event, h11.Data):
                    parts.append(bytes(event.data))
                else:
                    self._is_over = True
        return b"".join(parts)

    async def _event(self) -> object:
        while self._is_dry or (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(_READ_BYTES))
            self._is_dry = False
        return event

    def is_ready_again(self) -> bool:
        """Get ready for another request, if all of the answer has come and the server lets us."""
        with suppress(h11.RemoteProtocolError):
            while self._http.their_state is h11.SEND_BODY and self._http.next_event() is not h11.NEED_DATA:
                pass  # what stands behind the last piece that somebody wanted
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE or not self.is_fresh:
            return False
        self._http.start_next_cycle()
        self._is_over = self._is_dry = False
        return True

    def close(self) -> None:
        """Let go of it at once: a server that still answers learns that nobody listens."""
        self._writer.transport.abort()


class _Body(httpx.AsyncByteStream):
    def __init__(self, connection: _Connection, idle: list[_Connection]) -> None:
        self._connection = connection
        self._idle = idle

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while data := await self._connection.read():
            yield data

    async def aclose(self) -> None:
        """Keep the connection for the next request, or close it."""
        if len(self._idle) < _KEPT and self._connection.is_ready_again():
            self._idle.append(self._connection)
        else:
            self._connection.close()


@contextmanager
def _as_httpx() -> Iterator[None]:
    """Raise what goes wrong on a connection as httpx's errors."""
    try:
        yield
    except h11.RemoteProtocolError as error:
        raise httpx.RemoteProtocolError(str(error)) from error
    except OSError as error:
        raise httpx.ReadError(str(error) or type(error).__name__) from error
