"""Connections to a remote server, over real sockets: pieces as they come, connections used again, faults by name."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import httpx
import pytest

from akashic_daemon.remote.transport import DirectTransport

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def request_of(reader: asyncio.StreamReader) -> bytes:
    """Read a request with its body; empty when the client has gone."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""
    length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
    return head + await reader.readexactly(length)


def against(serve: Serve, check: Callable[[httpx.AsyncClient], Awaitable[None]]) -> int:
    """Run `check` on a client of a server made of `serve`; return how many connections came."""
    count = 0

    async def run() -> None:
        ended = []

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal count
            count += 1
            ended.append(asyncio.current_task())
            try:
                await serve(reader, writer)
            except ConnectionError:
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with httpx.AsyncClient(transport=DirectTransport(), base_url=url, timeout=httpx.Timeout(30.0)) as client:
            await check(client)
        server.close()
        await asyncio.gather(*(task for task in ended if task is not None))

    asyncio.run(asyncio.wait_for(run(), 60))
    return count


def test_a_piece_is_there_before_the_next_is_sent() -> None:
    seen = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await request_of(reader)).endswith(b"\r\n\r\nasked")
        writer.write(HEAD + chunk(b"one"))
        await seen.wait()
        writer.write(chunk(b"two") + b"0\r\n\r\n")
        await writer.drain()

    async def check(client: httpx.AsyncClient) -> None:
        pieces = []
        async with client.stream("POST", "/v1/x?y=1", content=b"asked") as response:
            async for piece in response.aiter_raw():
                pieces.append(piece)
                seen.set()
        assert pieces == [b"one", b"two"]

    against(serve, check)


@pytest.mark.parametrize("ending", [b"0\r\n\r\n", chunk(b"more") + b"0\r\n\r\n"], ids=["read whole", "end came unread"])
def test_a_connection_is_used_again_when_its_answer_has_come_whole(ending: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await request_of(reader):
            writer.write(HEAD + chunk(b"data: [DONE]\n\n") + ending)
            await writer.drain()

    async def check(client: httpx.AsyncClient) -> None:
        for _ in range(3):
            async with client.stream("POST", "/", content=b"x") as response:
                async for piece in response.aiter_raw():
                    assert piece.startswith(b"data: [DONE]")
                    break

    assert against(serve, check) == 1


def test_one_that_the_server_closed_meanwhile_is_not() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        await writer.drain()

    async def check(client: httpx.AsyncClient) -> None:
        for _ in range(3):
            assert (await client.get("/")).text == "ok"
            while client._transport._idle[0].is_fresh:  # type: ignore[attr-defined]
                await asyncio.sleep(0)

    assert against(serve, check) == 3


def test_leaving_in_the_middle_ends_the_connection() -> None:
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(HEAD + chunk(b"one"))
        assert await reader.read() == b""
        gone.set()

    async def check(client: httpx.AsyncClient) -> None:
        async with client.stream("POST", "/", content=b"x") as response:
            assert await anext(response.aiter_raw()) == b"one"
        await gone.wait()

    against(serve, check)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (b"", httpx.RemoteProtocolError),
        (b"SSH-2.0-OpenSSH\r\n", httpx.RemoteProtocolError),
        (HEAD + b"5\r\non", httpx.RemoteProtocolError),
        (HEAD + b"zz\r\n", httpx.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort", httpx.RemoteProtocolError),
    ],
    ids=["nothing", "no HTTP", "cut in a chunk", "no chunk", "cut body"],
)
def test_what_is_no_whole_answer_is_a_transport_error(said: bytes, error: type[Exception]) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(said)
        await writer.drain()

    async def check(client: httpx.AsyncClient) -> None:
        with pytest.raises(error):
            await client.post("/", content=b"x")

    against(serve, check)


def test_nobody_listening_is_a_connect_error() -> None:
    async def ask() -> None:
        async with httpx.AsyncClient(transport=DirectTransport()) as client:
            with pytest.raises(httpx.ConnectError):
                await client.get("http://127.0.0.1:1/")

    asyncio.run(ask())


def test_what_comes_before_the_answer_is_passed_over() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n")
        await writer.drain()

    async def check(client: httpx.AsyncClient) -> None:
        assert (await client.get("/")).status_code == 204

    against(serve, check)
