"""A synchronous client of the daemon on its Unix socket.

It speaks JSON and NDJSON and turns every failure into an `AkashicError`; what the fields mean is the commands' affair.
"""

from __future__ import annotations

import json
import socket as sockets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

import httpx
from pydantic import ValidationError

from akashic_daemon.errors import (
    AkashicError,
    Conflict,
    DaemonNotRunning,
    DaemonUnhealthy,
    Forbidden,
    UsageError,
    from_wire,
)
from akashic_daemon.paths import Paths, find_paths
from akashic_daemon.protocol import PROTOCOL_VERSION
from akashic_daemon.protocol.native import Status

NATIVE = "/akashic/v1"
CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 60.0
"""A short request that takes longer means that the daemon's loop is stuck."""


class Client:
    """One connection pool to one daemon. Close it, or use it in a `with`."""

    def __init__(self, socket: Path, *, answer_timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self.socket = socket
        self._http = httpx.Client(
            transport=httpx.HTTPTransport(uds=str(socket)),
            base_url="http://localhost",
            timeout=httpx.Timeout(answer_timeout_s, connect=CONNECT_TIMEOUT_S),
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def health(self) -> tuple[bool, str]:
        """Ask `/healthz`. Raises DaemonNotRunning when nobody answers."""
        self._probe(f"asking {self.socket} for its health")
        with _mapped(f"asking {self.socket} for its health"):
            response = self._http.get("/healthz", timeout=CONNECT_TIMEOUT_S)
        body = _json(response)
        if not isinstance(body, dict) or "healthy" not in body:
            raise DaemonUnhealthy(
                f"asking {self.socket} for its health: unexpected answer, HTTP {response.status_code}",
                hint="`akashic daemon restart`",
            )
        return bool(body["healthy"]), str(body.get("detail") or "")

    def handshake(self) -> Status:
        """Return the daemon's status. Raises Conflict when it speaks another version of the protocol."""
        body = self.get("/status")
        version = body.get("protocol_version") if isinstance(body, dict) else None
        if version != PROTOCOL_VERSION:
            theirs = body.get("version", "unknown") if isinstance(body, dict) else "unknown"
            raise Conflict(
                f"talking to the daemon on {self.socket}: it is version {theirs} with protocol {version}, "
                f"this command speaks protocol {PROTOCOL_VERSION}",
                hint="`akashic daemon restart` starts the version that is installed",
            )
        try:
            return Status.model_validate(body)
        except ValidationError as error:
            raise Conflict(
                f"reading the status of the daemon on {self.socket}: {error.errors()[0]['msg']}",
                hint="`akashic daemon restart` starts the version that is installed",
            ) from error

    def get(self, path: str, **params: str | float | Sequence[str]) -> Any:
        """GET a native route and return its JSON."""
        return self._request("GET", path, params=params)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """POST JSON to a native route and return its JSON."""
        return self._request("POST", path, body=body)

    def put(self, path: str, body: Mapping[str, Any]) -> Any:
        """PUT JSON to a native resource and return its JSON."""
        return self._request("PUT", path, body=body)

    def delete(self, path: str) -> Any:
        """DELETE a native resource and return its JSON."""
        return self._request("DELETE", path)

    def _request(
        self, method: str, path: str, *, params: Mapping[str, Any] | None = None, body: Mapping[str, Any] | None = None
    ) -> Any:
        doing = f"asking the daemon on {self.socket} for {path}"
        self._probe(doing)
        with _mapped(doing):
            response = self._http.request(method, NATIVE + path, params=params, json=body)
        if response.is_error:
            raise _error_of(response, path)
        return _json(response)

    @contextmanager
    def stream(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        content: Iterable[bytes] | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> Iterator[Iterator[dict[str, Any]]]:
        """Open an NDJSON answer and give its objects one by one; leaving the block closes it, which cancels the work.

        An object whose `error` is set is raised. Waiting has no limit: a prompt may wait long in the queue.
        """
        timeout = httpx.Timeout(None, connect=CONNECT_TIMEOUT_S)
        doing = f"asking the daemon on {self.socket} for {path}"
        self._probe(doing)
        with (
            _mapped(doing),
            self._http.stream(
                method, NATIVE + path, json=body, content=content, params=params, timeout=timeout
            ) as response,
        ):
            if response.is_error:
                response.read()
                raise _error_of(response, path)
            yield _objects(response.iter_lines(), doing)

    def long(
        self,
        method: str,
        path: str,
        doing: str,
        *,
        body: Mapping[str, Any] | None = None,
        content: Iterable[bytes] | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return the one object of an answer for which there is no time limit. `doing` is what an error says was done."""
        with self.stream(method, path, body=body, content=content, params=params) as answers:
            answer = next(iter(answers), None)
        if answer is None:
            raise AkashicError(f"{doing}: the answer ended without a result", hint="`akashic daemon logs` says more")
        return answer

    @contextmanager
    def download(self, path: str, **params: str) -> Iterator[Iterator[bytes]]:
        """Open an answer of bytes and give them piece by piece; leaving the block closes it."""
        timeout = httpx.Timeout(None, connect=CONNECT_TIMEOUT_S)
        doing = f"asking the daemon on {self.socket} for {path}"
        self._probe(doing)
        with _mapped(doing), self._http.stream("GET", NATIVE + path, params=params, timeout=timeout) as response:
            if response.is_error:
                response.read()
                raise _error_of(response, path)
            yield response.iter_raw()

    def _probe(self, doing: str) -> None:
        """Raise DaemonNotRunning when nobody listens. httpcore leaks the socket of a failed connect; this doesn't."""
        try:
            with sockets.socket(sockets.AF_UNIX) as probe:
                probe.settimeout(CONNECT_TIMEOUT_S)
                probe.connect(str(self.socket))
        except TimeoutError as error:
            raise DaemonUnhealthy(f"{doing}: it doesn't take connections", hint="`akashic daemon restart`") from error
        except PermissionError as error:
            raise DaemonUnhealthy(
                f"{doing}: {error.strerror}", hint="fix the permissions of its folder, or set AKASHIC_HOME to your own"
            ) from error
        except OSError as error:
            why = error.strerror or error
            raise DaemonNotRunning(f"{doing}: no daemon listens ({why})", hint="`akashic daemon start`") from error


def segment(name: str) -> str:
    """Return a name as one segment of a path. Raises UsageError for one that a path takes for another place."""
    if name in ("", ".", ".."):
        raise UsageError(f"naming {name!r}: nothing can have that name", hint="`list` shows the names")
    return quote(name, safe="")


def connect(*, autostart: bool, paths: Paths | None = None) -> tuple[Client, Status]:
    """Return a client that has shaken hands. Starts the daemon if allowed, else raises DaemonNotRunning."""
    paths = paths or find_paths()
    client = Client(paths.socket)
    try:
        return client, client.handshake()
    except DaemonNotRunning as error:
        if not autostart:
            client.close()
            raise DaemonNotRunning(
                error.message, hint="`akashic daemon start` starts it, and so does any command without --no-autostart"
            ) from error
    except BaseException:
        client.close()
        raise
    from akashic_cli.autostart import start_daemon

    try:
        start_daemon(client, paths)
        return client, client.handshake()
    except BaseException:
        client.close()
        raise


def require_healthy(status: Status) -> None:
    """Raise DaemonUnhealthy when the daemon's step loop doesn't turn, instead of waiting for ever."""
    if not status.healthy and status.engine.state != "loading":
        raise DaemonUnhealthy(
            f"using the daemon with pid {status.pid}: {status.health_detail or 'its step loop does not turn'}",
            hint="`akashic daemon logs` says more; `akashic daemon restart` starts it anew",
        )


@contextmanager
def _mapped(doing: str) -> Iterator[None]:
    """Turn httpx's exceptions into ours."""
    try:
        yield
    except httpx.ConnectError as error:
        raise DaemonNotRunning(f"{doing}: no daemon listens ({error})", hint="`akashic daemon start`") from error
    except httpx.TimeoutException as error:
        raise DaemonUnhealthy(
            f"{doing}: no answer in time", hint="`akashic daemon status` and `akashic daemon logs` say more"
        ) from error
    except httpx.TransportError as error:
        raise DaemonNotRunning(
            f"{doing}: the daemon went away ({error or type(error).__name__})",
            hint="`akashic daemon logs` says why; the next command starts it again",
        ) from error


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return None


def _error_of(response: httpx.Response, path: str) -> AkashicError:
    """Return the error that a response carries."""
    body = _json(response)
    if isinstance(body, dict) and isinstance(body.get("error"), dict):
        return from_wire(body["error"])
    kind = Forbidden if response.status_code == 403 else AkashicError
    return kind(
        f"asking the daemon for {path}: HTTP {response.status_code} without an explanation",
        hint="`akashic daemon restart` if the daemon is of another version; else `akashic daemon logs`",
    )


def _objects(lines: Iterable[str], doing: str) -> Iterator[dict[str, Any]]:
    for line in lines:
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            raise AkashicError(f"{doing}: a line of the answer is no JSON", hint="`akashic daemon restart`") from error
        if not isinstance(value, dict):
            raise AkashicError(f"{doing}: a line of the answer is no object", hint="`akashic daemon restart`")
        if isinstance(value.get("error"), dict):
            raise from_wire(value["error"])
        yield value
