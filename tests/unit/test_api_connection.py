"""Connections of clients that break HTTP, dawdle, or are refused before their body is read; over real sockets."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
import uvicorn

from akashic_daemon.api import connection
from akashic_daemon.api.app import create_app
from akashic_daemon.api.connection import Connection
from akashic_daemon.protocol.native import Reuse
from akashic_daemon.schedule.events import GenerationEvent, Started
from echo_service import CHAT, EchoService, finished, run

HOST = b"Host: 127.0.0.1\r\n"
Wire = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def over_tcp(service: EchoService, check: Callable[[Callable[[], Awaitable[Wire]]], Awaitable[None]]) -> None:
    """Run `check` with a function that opens a connection to the service."""

    async def serving() -> None:
        config = uvicorn.Config(
            create_app(service, token="t" * 20),
            host="127.0.0.1",
            port=0,
            log_config=None,
            lifespan="off",
            http=Connection,
        )
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        writers = []

        async def connect() -> Wire:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writers.append(writer)
            return reader, writer

        try:
            await check(connect)
        finally:
            for writer in writers:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
            server.should_exit = True
            await task

    run(serving)


def request(body: bytes, *headers: bytes, path: str = CHAT) -> bytes:
    lines = [f"POST {path} HTTP/1.1".encode(), HOST.strip(), b"Authorization: Bearer " + b"t" * 20, *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def connections() -> list[Connection]:
    return [one for one in gc.get_objects() if type(one) is Connection and one.transport is not None]


@pytest.mark.parametrize("begun", [b"", b"POST /v1/chat", b"POST / HTTP/1.1\r\nHost: x\r\nX-A: "])
def test_a_client_that_never_ends_its_headers_is_told_and_let_go(
    home: Path, monkeypatch: pytest.MonkeyPatch, begun: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection, "HEAD_LIMIT_S", 0.05)

    async def check(connect: Callable[[], Awaitable[Wire]]) -> None:
        reader, writer = await connect()
        writer.write(begun)
        answer = await reader.read(-1)
        assert answer.startswith(b"HTTP/1.1 400") == bool(begun)
        assert (b"headers did not go on for 0.05 s" in answer) == bool(begun)

    with caplog.at_level(logging.INFO, "akashic.http"):
        over_tcp(EchoService(home), check)
    assert "headers didn't go on for 0.05 s" in caplog.text


def test_a_body_that_stops_coming_ends_the_request_and_says_so(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "BODY_PAUSE_LIMIT_S", 0.05)

    async def check(connect: Callable[[], Awaitable[Wire]]) -> None:
        reader, writer = await connect()
        writer.write(request(b'{"mess', b"Content-Length: 100"))
        assert b"body did not go on for 0.05 s" in await reader.read(-1)

    service = EchoService(home)
    over_tcp(service, check)
    assert service.requests == []


def test_nothing_is_waited_for_while_an_answer_runs_or_a_connection_rests(home: Path) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def slowly() -> AsyncGenerator[GenerationEvent, None]:
        yield Started("req-1", "s", "echo", 7, Reuse())
        asked.set()
        await go_on.wait()
        yield finished("", 0)

    def timers() -> list[object]:
        return [one._timer for one in connections() if one._timer is not None]

    async def check(connect: Callable[[], Awaitable[Wire]]) -> None:
        reader, writer = await connect()
        for _ in range(2):
            writer.write(request(b"", path="/nothing"))
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 404")
            await reader.readuntil(b"}}}")
            assert timers() == []
        body = b'{"messages": [{"role": "user", "content": "x"}], "stream": true}'
        writer.write(request(body[:5], b"Content-Length: %d" % len(body)))
        while not timers():
            await asyncio.sleep(0)
        writer.write(body[5:])
        await asked.wait()
        assert timers() == []
        go_on.set()
        await reader.readuntil(b"[DONE]")

    over_tcp(EchoService(home, slowly), check)


@pytest.mark.parametrize("method", [b"POST", b"HEAD"])
def test_what_breaks_http_in_the_middle_of_a_body_is_refused_without_a_traceback(
    home: Path, caplog: pytest.LogCaptureFixture, method: bytes
) -> None:
    async def check(connect: Callable[[], Awaitable[Wire]]) -> None:
        reader, writer = await connect()
        broken = request(b"5\r\nhello\r\nzz\r\n", b"Transfer-Encoding: chunked")
        writer.write(method + broken.removeprefix(b"POST"))
        assert b"400" in await reader.read(-1)

    service = EchoService(home)
    over_tcp(service, check)
    assert service.requests == []
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize(
    ("path", "token", "status"), [(CHAT, b"wrong", 401), ("/nothing", b"t" * 20, 404), ("/metrics", b"t" * 20, 405)]
)
def test_a_refusal_is_read_by_a_client_that_sends_all_of_a_large_body_first(
    home: Path, path: str, token: bytes, status: int
) -> None:
    async def check(connect: Callable[[], Awaitable[Wire]]) -> None:
        reader, writer = await connect()
        size = 8_000_000
        head = f"POST {path} HTTP/1.1\r\nContent-Length: {size}\r\nConnection: close\r\n".encode()
        writer.write(head + HOST + b"Authorization: Bearer " + token + b"\r\n\r\n")
        writer.write(b"x" * size)
        await writer.drain()
        assert (await reader.read(-1)).startswith(b"HTTP/1.1 %d" % status)

    over_tcp(EchoService(home), check)


@pytest.mark.parametrize(("line", "status"), [(b"GET /openapi.json", 200), (b"POST /v1/completions/", 307)])
def test_an_answer_that_needs_no_body_is_read_by_a_client_that_sends_a_large_one(
    home: Path, line: bytes, status: int
) -> None:
    async def check(connect: Callable[[], Awaitable[Wire]]) -> None:
        reader, writer = await connect()
        size = 8_000_000
        head = line + f" HTTP/1.1\r\nContent-Length: {size}\r\nConnection: close\r\n".encode()
        writer.write(head + HOST + b"Authorization: Bearer " + b"t" * 20 + b"\r\n\r\n")
        writer.write(b"x" * size)
        await writer.drain()
        assert (await reader.read(-1)).startswith(b"HTTP/1.1 %d" % status)

    over_tcp(EchoService(home), check)


@pytest.mark.parametrize("first", [b"HEAD /\xe9 HTTP/1.1\r\n", b"no request at all\r\n", b"POST / HTTP/9\r\n"])
def test_what_is_no_request_is_told_so_also_in_front_of_a_large_body(home: Path, first: bytes) -> None:
    async def check(connect: Callable[[], Awaitable[Wire]]) -> None:
        reader, writer = await connect()
        writer.write(first + HOST + b"\r\n")
        writer.write(b"x" * 8_000_000)
        await writer.drain()
        assert (await reader.read(-1)).startswith(b"HTTP/1.1 400")

    over_tcp(EchoService(home), check)


def test_a_client_that_closes_its_sending_side_counts_as_gone(home: Path) -> None:
    async def for_ever() -> AsyncGenerator[GenerationEvent, None]:
        yield Started("req-1", "s", "echo", 7, Reuse())
        await asyncio.Event().wait()

    service = EchoService(home, for_ever)

    async def check(connect: Callable[[], Awaitable[Wire]]) -> None:
        for stream in (b"true", b"false"):
            reader, writer = await connect()
            body = b'{"messages": [{"role": "user", "content": "x"}], "stream": %s}' % stream
            writer.write(request(body, b"Content-Length: %d" % len(body)))
            await service.started.wait()
            service.started.clear()
            writer.write_eof()
            assert b"error" not in await reader.read(-1)

    over_tcp(service, check)
    assert service.closed == 2


def test_a_broken_body_behind_expect_is_refused_once(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def check(connect: Callable[[], Awaitable[Wire]]) -> None:
        reader, writer = await connect()
        writer.write(request(b"zz\r\n", b"Transfer-Encoding: chunked", b"Expect: 100-continue"))
        answer = await reader.read(-1)
        assert answer.startswith(b"HTTP/1.1 400")
        assert answer.count(b"HTTP/1.1") == 1

    over_tcp(EchoService(home), check)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_client_that_has_reset_its_connection_is_no_bug_when_it_is_answered(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[object] = []

    def is_reset(transport: object) -> None:
        tried.append(transport)
        raise OSError(107, "Transport endpoint is not connected")

    async def check(connect: Callable[[], Awaitable[Wire]]) -> None:
        reader, writer = await connect()
        writer.write(request(b"", b"Content-Length: 1000", b"Expect: 100-continue", path="/nothing"))
        with suppress(ConnectionError):
            await reader.read(-1)

    monkeypatch.setattr("asyncio.selector_events._SelectorSocketTransport.write_eof", is_reset)
    over_tcp(EchoService(home), check)
    assert tried
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("begun", [b"", b"POST /v1/chat", request(b"{", b"Content-Length: 100", path="/nothing")])
def test_whoever_waited_longest_makes_room_and_who_is_answered_stays(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, begun: bytes
) -> None:
    monkeypatch.setattr(connection, "MOST_CONNECTIONS", 3)
    monkeypatch.setattr(Connection, "_told_s", -1000.0)
    go_on = asyncio.Event()

    async def slowly() -> AsyncGenerator[GenerationEvent, None]:
        yield Started("req-1", "s", "echo", 7, Reuse())
        await go_on.wait()
        yield finished("", 0)

    service = EchoService(home, slowly)

    async def check(connect: Callable[[], Awaitable[Wire]]) -> None:
        reader, writer = await connect()
        body = b'{"messages": [{"role": "user", "content": "x"}], "stream": true}'
        writer.write(request(body, b"Content-Length: %d" % len(body)))
        await service.started.wait()
        idle = []
        for _ in range(9):
            idle.append(await connect())
            if len(idle) < 9:
                idle[-1][1].write(begun)
        for others, _ in idle[:-2]:
            with suppress(ConnectionError):
                assert await others.read(-1) == b""
        last_reader, last_writer = idle[-1]
        last_writer.write(request(b"", path="/nothing"))
        assert (await last_reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 404")
        go_on.set()
        await reader.readuntil(b"[DONE]")

    with caplog.at_level(logging.WARNING, "akashic.http"):
        over_tcp(service, check)
    assert caplog.text.count("more than 3 connections") == 1


async def send_for_ever(writer: asyncio.StreamWriter, piece: bytes) -> None:
    while True:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0)


def test_who_sends_on_without_end_after_a_refusal_is_cut_off(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SKIPPED_BYTES", 1_000_000)
    monkeypatch.setattr(connection, "LINGER_S", 1000.0)

    async def check(connect: Callable[[], Awaitable[Wire]]) -> None:
        _, writer = await connect()
        writer.write(b"no request at all\r\n\r\n")
        with pytest.raises(ConnectionError):
            await send_for_ever(writer, b"x" * 100_000)

    over_tcp(EchoService(home), check)


def test_who_stays_after_a_refusal_is_let_go(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LINGER_S", 0.05)

    async def check(connect: Callable[[], Awaitable[Wire]]) -> None:
        reader, writer = await connect()
        writer.write(b"no request at all\r\n\r\n")
        assert (await reader.read(-1)).startswith(b"HTTP/1.1 400")
        with pytest.raises(ConnectionError):
            await send_for_ever(writer, b"x")

    over_tcp(EchoService(home), check)


@pytest.mark.parametrize("close", [b"Connection: close", b"Connection: keep-alive"])
@pytest.mark.parametrize("size", [0, 1000, 8_000_000])
def test_a_client_that_asks_whether_to_send_is_refused_before_it_does(home: Path, close: bytes, size: int) -> None:
    async def check(connect: Callable[[], Awaitable[Wire]]) -> None:
        reader, writer = await connect()
        length = b"Content-Length: %d" % max(size, 1000)
        writer.write(request(b"", length, b"Expect: 100-continue", close, path="/nothing") + b"x" * size)
        await writer.drain()  # all of it, before the answer is read
        answer = await reader.read(-1)
        assert answer.startswith(b"HTTP/1.1 404")
        assert b"connection: close" in answer.lower()

    over_tcp(EchoService(home), check)


def test_who_pauses_after_its_last_answer_is_let_go(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LINGER_PAUSE_S", 0.05)

    async def check(connect: Callable[[], Awaitable[Wire]]) -> None:
        reader, writer = await connect()
        writer.write(request(b"", b"Content-Length: 1000", b"Expect: 100-continue", path="/nothing"))
        assert (await reader.read(-1)).startswith(b"HTTP/1.1 404")
        while any(one._left_bytes is not None and not one.transport.is_closing() for one in connections()):
            await asyncio.sleep(0)

    over_tcp(EchoService(home), check)
