"""The loopback port beside the Unix socket: asked for by the settings, or while the daemon runs."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable

from akashic_daemon.config import ServeSection
from akashic_daemon.errors import ConfigError, Unsupported

logger = logging.getLogger("akashic.daemon")
BACKLOG = 512


class TcpPort:
    """Where TCP clients find the daemon. serve: how its process takes connections of one more socket; set by who has them."""

    def __init__(self, options: ServeSection) -> None:
        self._options = options
        self.url = self._url_of(options.port) if options.port else None
        self.serve: Callable[[socket.socket], Awaitable[None]] | None = None
        self._opening = asyncio.Lock()

    async def open(self, port: int) -> str:
        """Listen on a port, 0 for any free one, and return where; where it listens already it goes on.

        Raises ConfigError when the port is taken, or the process can't take connections of it.
        """
        async with self._opening:
            if self.url is None:
                if self.serve is None:
                    raise Unsupported(
                        "listening on TCP: this daemon has no sockets of its own", hint="start it with a port"
                    )
                listener = tcp_socket(self._options.model_copy(update={"port": port}))
                url = self._url_of(listener.getsockname()[1])
                await _taken(self.serve, listener, url)
                self.url = url
                logger.info("akashic listens on %s too", url)
            return self.url

    def _url_of(self, port: int) -> str:
        host = self._options.host
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def _taken(serve: Callable[[socket.socket], Awaitable[None]], listener: socket.socket, url: str) -> None:
    """Let the process take a listener's connections, or close it and raise ConfigError."""
    try:
        await serve(listener)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"listening on {url}: {error.strerror or error}", hint="try again; `akashic doctor` looks at limits"
        ) from error


def tcp_socket(serve: ServeSection) -> socket.socket:
    """Return the listening TCP socket. Raises ConfigError for an outside address or a taken port."""
    host = "127.0.0.1" if serve.host == "localhost" else serve.host
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError as error:
        raise ConfigError(f"serve.host {serve.host!r} is not an IP address", hint="use 127.0.0.1 or ::1") from error
    if not loopback:
        raise ConfigError(
            f"serve.host {serve.host} is not a loopback address", hint="use 127.0.0.1; put a proxy in front for others"
        )
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, serve.port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"listening on {host}:{serve.port}: {error.strerror}",
            hint="choose another --port, or stop the program that has it",
        ) from error
    return listener
