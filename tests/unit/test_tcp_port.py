"""The loopback port that a running daemon opens: once, and only told of when connections are taken there."""

from __future__ import annotations

import asyncio
import errno
import socket

import pytest

from akashic_daemon.config import ServeSection
from akashic_daemon.errors import ConfigError
from akashic_daemon.process.tcp_port import TcpPort


def test_two_who_ask_at_once_are_told_of_one_port() -> None:
    async def run() -> None:
        port, served = TcpPort(ServeSection()), list[socket.socket]()

        async def serve(listener: socket.socket) -> None:
            await asyncio.sleep(0)
            served.append(listener)

        port.serve = serve
        first, second = await asyncio.gather(port.open(0), port.open(0))
        assert first == second == f"http://127.0.0.1:{served[0].getsockname()[1]}"
        assert len(served) == 1
        served[0].close()

    asyncio.run(run())


def test_a_port_whose_connections_nobody_takes_is_an_error_and_the_next_try_may_succeed() -> None:
    async def run() -> None:
        port, served = TcpPort(ServeSection()), list[socket.socket]()

        async def broken(listener: socket.socket) -> None:
            served.append(listener)
            raise OSError(errno.EMFILE, "Too many open files")

        async def whole(listener: socket.socket) -> None:
            served.append(listener)

        port.serve = broken
        with pytest.raises(ConfigError, match="Too many open files"):
            await port.open(0)
        assert port.url is None
        assert served[0].fileno() == -1
        port.serve = whole
        assert await port.open(0) == f"http://127.0.0.1:{served[1].getsockname()[1]}"
        served[1].close()

    asyncio.run(run())
