"""Who a daemon on TCP trusts: nobody without the token, however the connection ends."""

from __future__ import annotations

import signal
import socket
import stat
import struct
import time
from pathlib import Path

import httpx
import pytest

from akashic_daemon.errors import ConfigError
from akashic_daemon.paths import Paths, find_paths
from akashic_daemon.process.lifecycle import bearer_token
from fake_daemon import DEADLINE_S, daemon, free_port, on_socket
from fake_service import register


@pytest.fixture
def paths(home: Path) -> Paths:
    register(home, ["fake"])
    return find_paths({"AKASHIC_HOME": str(home)})


def test_a_tcp_client_that_resets_its_connection_is_not_taken_for_the_socket(home: Path, paths: Paths) -> None:
    port = free_port()
    with daemon(home, "--port", str(port)) as process, on_socket(paths) as client:
        client.post("/akashic/v1/sessions/diary/turn", json={"prompt": "hi", "max_tokens": 2}).raise_for_status()
        # Stopped, the daemon finds request and reset together when it goes on: then there is no peer address.
        process.send_signal(signal.SIGSTOP)
        with socket.create_connection(("127.0.0.1", port)) as attacker:
            attacker.sendall(b"DELETE /akashic/v1/sessions/diary HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            attacker.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        process.send_signal(signal.SIGCONT)
        # Connections are accepted in order: once this one is answered the attacker's has been.
        assert httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=DEADLINE_S).status_code == 200
        sessions = client.get("/akashic/v1/sessions").json()["sessions"]
        assert [s["session"] for s in sessions] == ["diary"]


def test_the_token_is_private_and_opens_tcp(home: Path, paths: Paths) -> None:
    port = free_port()
    with daemon(home, "--port", str(port)):
        assert stat.S_IMODE(paths.token_file.stat().st_mode) == 0o600
        token = paths.token_file.read_text().strip()
        url = f"http://127.0.0.1:{port}/v1/models"
        assert httpx.get(url, headers={"authorization": f"bearer {token}"}, timeout=DEADLINE_S).status_code == 200
        assert httpx.get(url, timeout=DEADLINE_S).status_code == 401


def test_a_running_daemon_listens_on_tcp_when_its_owner_asks_and_wants_the_token_there(
    home: Path, paths: Paths
) -> None:
    with daemon(home), on_socket(paths) as client:
        assert client.get("/akashic/v1/status").json()["tcp"] is None
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            taken = client.post("/akashic/v1/listen", json={"port": other.getsockname()[1]})
            assert (taken.status_code, taken.json()["error"]["code"]) == (400, "config")
        tcp = client.post("/akashic/v1/listen", json={}).json()["tcp"]
        assert client.post("/akashic/v1/listen", json={"port": free_port()}).json()["tcp"] == tcp
        assert client.get("/akashic/v1/status").json()["tcp"] == tcp
        headers = {"authorization": f"Bearer {paths.token_file.read_text().strip()}"}
        assert httpx.get(f"{tcp}/v1/models", headers=headers, timeout=DEADLINE_S).status_code == 200
        assert httpx.get(f"{tcp}/v1/models", timeout=DEADLINE_S).status_code == 401
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{tcp}/healthz", timeout=DEADLINE_S)


def test_another_loopback_address_is_served_under_its_own_name(home: Path, paths: Paths) -> None:
    port = free_port()
    with daemon(home, "--host", "127.0.0.2", "--port", str(port)):
        headers = {"authorization": f"Bearer {paths.token_file.read_text().strip()}"}
        response = httpx.get(f"http://127.0.0.2:{port}/v1/models", headers=headers, timeout=DEADLINE_S)
        assert response.status_code == 200


@pytest.mark.parametrize("content", ["", "\n", "short\n", "0123456789abcde\u00e9f\n"])
def test_an_empty_or_weak_token_file_is_refused(paths: Paths, content: str) -> None:
    paths.token_file.write_text(content)
    with pytest.raises(ConfigError, match="token"):
        bearer_token(paths.token_file)


def test_the_token_stays_the_same_and_is_made_private_again(paths: Paths) -> None:
    first = bearer_token(paths.token_file)
    paths.token_file.chmod(0o644)
    assert bearer_token(paths.token_file) == first
    assert stat.S_IMODE(paths.token_file.stat().st_mode) == 0o600


def test_an_idle_daemon_ends_by_itself_and_not_while_it_is_asked(home: Path, paths: Paths) -> None:
    with daemon(home, "--idle-exit", "2") as process:
        with on_socket(paths) as client, client.stream("GET", "/akashic/v1/stats/stream?interval_s=1") as response:
            lines = response.iter_lines()
            for _ in range(4):  # Three seconds and more, by the daemon's own clock.
                assert next(lines)
            assert process.poll() is None
        deadline = time.monotonic() + DEADLINE_S
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert process.returncode == 0
        assert not paths.socket.exists()
