"""The daemon as a process: one a home (flock), its sockets, its signals, and an end within 10 seconds."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import resource
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import uvicorn

from akashic_daemon.api.app import LOOPBACK_HOSTS, create_app
from akashic_daemon.api.border import Activity
from akashic_daemon.api.connection import Connection
from akashic_daemon.api.spool import remove_left_uploads
from akashic_daemon.config import Settings, log_level
from akashic_daemon.errors import AkashicError, ConfigError, DaemonRunning, StoreUnwritable
from akashic_daemon.paths import Paths, ensure_private_dir
from akashic_daemon.process.tcp_port import BACKLOG, tcp_socket
from akashic_daemon.service import Service

logger = logging.getLogger("akashic.daemon")
_SOCKET_PATH_LIMIT_BYTES = 107
_DRAIN_S = 1.0
"""How long each step of the end waits: for short answers, for last words, for connections to close."""
_STOP_LIMIT_S = 9.5
_SHORTEST_TOKEN = 16
_FILES = 8192


@contextmanager
def only_daemon(paths: Paths) -> Iterator[None]:
    """Hold the home's lock, and the store's. Raises DaemonRunning, naming the holder's pid.

    XDG_RUNTIME_DIR is set in a login session and not in a cron job: both find the same store, of which two would each
    keep an own picture in memory.
    """
    own_hint = "`akashic daemon stop`, or set AKASHIC_HOME to another folder"
    other_hint = (
        f"end that one, or give XDG_RUNTIME_DIR the value that it has there; here it serves {paths.runtime_dir}"
    )
    with _held(paths.lock, own_hint), _held(paths.store_lock, other_hint):
        yield


@contextmanager
def _held(path: Path, hint: str) -> Iterator[None]:
    ensure_private_dir(path.parent)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise _unwritable("opening the lock", path, error) from error
    try:
        _lock(descriptor, path, hint)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path, hint: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    except BlockingIOError as error:
        pid = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
        raise DaemonRunning(
            f"a daemon (pid {pid}) already serves {path.parent}",
            hint=hint,
        ) from error
    except OSError as error:
        raise _unwritable("writing the pid into the lock", path, error) from error


def _unwritable(doing: str, path: Path, error: OSError) -> StoreUnwritable:
    return StoreUnwritable(
        f"{doing} {path}: {error.strerror or error}",
        hint="free space or fix permissions, or set AKASHIC_HOME to a folder you can write",
    )


def unix_socket(paths: Paths) -> socket.socket:
    """Return the Unix socket, bound, 0600. Call it with the lock held: an old socket file is removed."""
    path = str(paths.socket)
    if len(path.encode()) > _SOCKET_PATH_LIMIT_BYTES:
        raise ConfigError(
            f"the socket's path is longer than {_SOCKET_PATH_LIMIT_BYTES} bytes: {path}",
            hint="set AKASHIC_HOME to a shorter folder",
        )
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        paths.socket.unlink(missing_ok=True)
        listener.bind(path)
        paths.socket.chmod(0o600)
    except OSError as error:
        listener.close()
        raise _unwritable("making the socket", paths.socket, error) from error
    return listener


def bearer_token(path: Path) -> str:
    """Return the token for TCP clients, made on first use, 0600. Raises StoreUnwritable, or ConfigError for a weak one."""
    ensure_private_dir(path.parent)
    try:
        if not path.exists():
            _write_token(path)
        path.chmod(0o600)
        token = path.read_text("ascii", "replace").strip()
    except OSError as error:
        raise _unwritable("reading the token", path, error) from error
    if len(token) < _SHORTEST_TOKEN or not token.isascii() or not token.isprintable():
        raise ConfigError(
            f"the token in {path} has not {_SHORTEST_TOKEN} printable characters",
            hint="remove the file: the next start makes a new token",
        )
    return token


def _write_token(path: Path) -> None:
    """Write a new token beside `path` and move it there, so that a full disk can't leave half a token."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        file.write(secrets.token_urlsafe(32).encode() + b"\n")
        os.fsync(descriptor)
    new.replace(path)


class _Server(uvicorn.Server):
    """Leaves signals to us, and says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing."""
        yield

    async def listen(self, listener: socket.socket) -> None:
        """Serve on one more socket, until the end."""

        def connection() -> Connection:
            return Connection(self.config, self.server_state, self.lifespan.state)

        self.servers.append(await asyncio.get_running_loop().create_server(connection, sock=listener, backlog=BACKLOG))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        self.listening.set()


def serve(
    settings: Settings, paths: Paths, *, service: Service | None = None, stop_limit_s: float = _STOP_LIMIT_S
) -> int:
    """Run the daemon until a signal; return the exit code. Raises AkashicError when it can't begin.

    A stop that takes longer than `stop_limit_s` ends the process by force.
    """
    os.umask(0o077)
    _allow_files()
    logging.basicConfig(stream=sys.stderr, level=log_level(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    sys.setswitchinterval(0.001)
    with only_daemon(paths):
        if left := remove_left_uploads(paths.cache_dir):
            logger.info("removed %d uploads that an earlier daemon left in %s", left, paths.cache_dir)
        sockets = [unix_socket(paths)]
        try:
            if settings.config.serve.port:
                sockets.append(tcp_socket(settings.config.serve))
            service = service or Service(settings, paths)
            code = _run(settings, paths, service, sockets, stop_limit_s)
        finally:
            for listener in sockets:
                listener.close()
            paths.socket.unlink(missing_ok=True)
        if service.leaves_threads:
            _end_without_finalising(code)
        return code


def _run(settings: Settings, paths: Paths, service: Service, sockets: list[socket.socket], stop_limit_s: float) -> int:
    """Serve and return the exit code. An error is logged instead of raised when it can't get to the process's end."""
    try:
        return asyncio.run(_serve(settings, paths, service, sockets, stop_limit_s))
    except Exception as error:
        if not service.leaves_threads:
            raise
        logger.exception("serving ended by an error")
        return error.exit_code if isinstance(error, AkashicError) else 1


def _end_without_finalising(code: int) -> NoReturn:
    """End the process as it is: native code in a thread that was left behind crashes when its libraries are taken down."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # closed, or nobody reads it any more
            stream.flush()
    os._exit(code)


def _allow_files() -> None:
    """Let the process have as many files as it may: a shell's usual 1,024 are fewer than connections, stores and logs take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _serve(
    settings: Settings, paths: Paths, service: Service, sockets: list[socket.socket], stop_limit_s: float
) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    options = settings.config.serve
    token = None if options.insecure_no_auth else bearer_token(paths.token_file)
    activity = Activity()
    app = create_app(service, token=token, allowed_hosts=LOOPBACK_HOSTS | {options.host}, activity=activity)
    server = _Server(
        uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", ws="none", http=Connection,
            proxy_headers=False, server_header=False, backlog=BACKLOG,
        )
    )  # fmt: skip
    service.tcp.serve = server.listen
    await service.start()
    serving = asyncio.create_task(server.serve(sockets=sockets))
    stopping = asyncio.create_task(stop.wait())
    telling = asyncio.create_task(_say_ready(server, paths, service.tcp.url))
    watching = asyncio.create_task(_watch_idle(activity, options.idle_exit_s, stop))
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    logger.info("stopping")
    _end_by_force_after(stop_limit_s)
    for task in (stopping, telling, watching):
        task.cancel()
    await _stop(server, serving, service)
    logger.info("stopped")
    return 0


async def _stop(server: _Server, serving: asyncio.Task[None], service: Service) -> None:
    """Stop accepting, let short answers end, end the others with their own last word, then close.

    Raises what ended the server when that was no signal.
    """
    server.should_exit = True
    await asyncio.wait({serving}, timeout=_DRAIN_S)
    await service.stop()
    await asyncio.wait({serving}, timeout=_DRAIN_S)
    server.force_exit = True
    await asyncio.wait({serving}, timeout=_DRAIN_S)
    if serving.done():
        serving.result()


def _end_by_force_after(seconds: float) -> None:
    """End the process when stopping takes too long: a wedged engine must not keep it (invariant 9)."""

    def end() -> None:
        logger.critical("not stopped after %g s: ending by force; a block being written may be lost", seconds)
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


async def _say_ready(server: _Server, paths: Paths, url: str | None) -> None:
    await server.listening.wait()
    logger.info("akashic listens on %s%s", paths.socket, f" and {url}" if url else "")


async def _watch_idle(activity: Activity, idle_exit_s: int, stop: asyncio.Event) -> None:
    if not idle_exit_s:
        return
    while activity.idle_s() < idle_exit_s:
        await asyncio.sleep(min(1.0, idle_exit_s / 4))
    logger.info("idle for %s s", idle_exit_s)
    stop.set()
