"""The daemon as a process: one a home (flock), its sockets, its signals, and an end within 10 seconds."""

from __future__ import annotations

import asyncio
import fcntl
import ipaddress
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import uvicorn

from akashic_daemon.api.app import LOOPBACK_HOSTS, create_app
from akashic_daemon.config import ServeSection, Settings
from akashic_daemon.errors import ConfigError, DaemonRunning, StoreUnwritable
from akashic_daemon.paths import Paths, ensure_private_dir
from akashic_daemon.service import Service

logger = logging.getLogger("akashic.daemon")
_SOCKET_PATH_LIMIT_BYTES = 107
_DRAIN_S = 1.0
"""How long open answers may go on after SIGTERM."""


@contextmanager
def only_daemon(paths: Paths) -> Iterator[TextIO]:
    """Hold the home's lock. Raises DaemonRunning, naming the holder's pid."""
    ensure_private_dir(paths.runtime_dir)
    try:
        file = open(paths.lock, "a+")  # noqa: SIM115 - held for the process's life
    except OSError as error:
        raise StoreUnwritable(f"opening the lock {paths.lock}: {error.strerror}", hint="fix permissions") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            pid = file.read().strip() or "unknown"
            raise DaemonRunning(
                f"a daemon (pid {pid}) already serves {paths.runtime_dir}",
                hint="`akashic daemon stop`, or set AKASHIC_HOME to another folder",
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield file


def unix_socket(paths: Paths) -> socket.socket:
    """Return the listening Unix socket, 0600. Call it with the lock held: an old socket file is removed."""
    path = str(paths.socket)
    if len(path.encode()) > _SOCKET_PATH_LIMIT_BYTES:
        raise ConfigError(
            f"the socket's path is longer than {_SOCKET_PATH_LIMIT_BYTES} bytes: {path}",
            hint="set AKASHIC_HOME to a shorter folder",
        )
    paths.socket.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    paths.socket.chmod(0o600)
    return listener


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
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"listening on {host}:{serve.port}: {error.strerror}",
            hint="choose another --port, or stop the program that has it",
        ) from error
    return listener


def bearer_token(path: Path) -> str:
    """Return the token for TCP clients, made on first use, 0600."""
    ensure_private_dir(path.parent)
    try:
        if not path.exists():
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_urlsafe(32) + "\n")
        return path.read_text().strip()
    except OSError as error:
        raise StoreUnwritable(f"reading the token {path}: {error.strerror}", hint="fix its permissions") from error


class _Server(uvicorn.Server):
    """Leaves signals to us."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing."""
        yield


def serve(settings: Settings, paths: Paths, *, service: Service | None = None) -> int:
    """Run the daemon until a signal; return the exit code. Raises AkashicError when it can't begin."""
    os.umask(0o077)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    sys.setswitchinterval(0.001)
    with only_daemon(paths):
        sockets = [unix_socket(paths)]
        try:
            if settings.config.serve.port:
                sockets.append(tcp_socket(settings.config.serve))
            return asyncio.run(_serve(settings, paths, service or Service(settings, paths), sockets))
        finally:
            for listener in sockets:
                listener.close()
            paths.socket.unlink(missing_ok=True)


async def _serve(settings: Settings, paths: Paths, service: Service, sockets: list[socket.socket]) -> int:
    options = settings.config.serve
    token = None if options.insecure_no_auth or not options.port else bearer_token(paths.token_file)
    app = create_app(service, token=token, hosts=LOOPBACK_HOSTS)
    await service.start()
    server = _Server(
        uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1, ws="none")
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    serving = asyncio.create_task(server.serve(sockets=sockets))
    where = str(paths.socket) + (f" and http://{options.host}:{options.port}" if options.port else "")
    logger.info("akashic listens on %s", where)
    watching = asyncio.create_task(_watch_idle(service, options.idle_exit_s, stop))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    logger.info("stopping")
    watching.cancel()
    server.should_exit = True
    await asyncio.wait({serving}, timeout=_DRAIN_S)
    server.force_exit = True
    await service.stop()
    await asyncio.wait({serving}, timeout=_DRAIN_S)
    logger.info("stopped")
    return 0


async def _watch_idle(service: Service, idle_exit_s: int, stop: asyncio.Event) -> None:
    if not idle_exit_s:
        return
    seen, since_s = -1, time.monotonic()
    while True:
        await asyncio.sleep(min(1.0, idle_exit_s / 4))
        stats = await service.stats()
        if stats.requests_total != seen or stats.activity:
            seen, since_s = stats.requests_total, time.monotonic()
        elif time.monotonic() - since_s >= idle_exit_s:
            logger.info("idle for %s s", idle_exit_s)
            stop.set()
            return
