"""The daemon as a process: one a home, its end, and what it says when it can't begin."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from akashic_daemon.paths import find_paths

Start = Callable[..., "subprocess.Popen[str]"]
SMALL = {
    "AKASHIC_MODEL_WINDOW_TOKENS": "512",
    "AKASHIC_CACHE_KV_TOKENS": "1024",
    "AKASHIC_CACHE_MAX_SEQUENCES": "4",
    "AKASHIC_SCHEDULE_THREADS": "1",
}


@pytest.fixture
def start(home: Path, smollm_path: Path) -> Iterator[Start]:
    """Start daemons on the test's home; those still there at its end are killed."""
    running: list[subprocess.Popen[str]] = []

    def begin(*flags: str) -> subprocess.Popen[str]:
        env = {k: v for k, v in os.environ.items() if not k.startswith("AKASHIC_")}
        process = subprocess.Popen(
            [sys.executable, "-m", "akashic_daemon", "serve", *flags],
            env={**env, **SMALL, "AKASHIC_HOME": str(home)},
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process

    yield begin
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate()


def wait_for_log(process: subprocess.Popen[str], words: str) -> str:
    """Read the log up to a line that holds `words`; return all lines read."""
    assert process.stderr is not None
    lines = ""
    for line in process.stderr:
        lines += line
        if words in line:
            return lines
    raise AssertionError(f"the daemon ended without saying {words!r}:\n{lines}")


def on_socket(home: Path) -> httpx.Client:
    path = str(find_paths({"AKASHIC_HOME": str(home)}).socket)
    return httpx.Client(transport=httpx.HTTPTransport(uds=path), base_url="http://localhost", timeout=60)


def test_a_daemon_answers_and_ends_on_sigterm_without_leaving_its_socket(home: Path, start: Start) -> None:
    daemon = start()
    wait_for_log(daemon, "is ready")
    paths = find_paths({"AKASHIC_HOME": str(home)})
    assert stat.S_IMODE(paths.socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(paths.runtime_dir.stat().st_mode) == 0o700
    with on_socket(home) as client:
        assert client.get("/healthz").json()["healthy"] is True
        body = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4}
        assert client.post("/v1/chat/completions", json=body).status_code == 200
        assert client.get("/akashic/v1/status").json()["pid"] == daemon.pid
    for file in paths.store_dir.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == (0o700 if file.is_dir() else 0o600), file
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait(10) == 0
    assert not paths.socket.exists()


def test_sigterm_ends_a_daemon_in_the_middle_of_an_answer(home: Path, start: Start) -> None:
    daemon = start()
    wait_for_log(daemon, "is ready")
    body = {
        "messages": [{"role": "user", "content": "Count to a thousand."}], "stream": True, "max_tokens": 450,
        "logit_bias": {"2": -100, "0": -100},
    }  # fmt: skip
    with on_socket(home) as client, client.stream("POST", "/v1/chat/completions", json=body) as response:
        chunks = response.iter_bytes()
        assert next(chunks)
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(10) == 0


def test_a_second_daemon_on_one_home_is_refused_with_the_pid_of_the_first(home: Path, start: Start) -> None:
    first = start()
    wait_for_log(first, "listens on")
    second = start()
    _, said = second.communicate(timeout=60)
    assert second.returncode == 1
    assert str(first.pid) in said
    assert "hint:" in said
    with on_socket(home) as client:
        assert client.get("/healthz").status_code == 200


def test_a_daemon_starts_again_after_kill_9(home: Path, start: Start) -> None:
    first = start()
    wait_for_log(first, "listens on")
    first.kill()
    first.wait(30)
    assert find_paths({"AKASHIC_HOME": str(home)}).socket.exists()
    second = start()
    wait_for_log(second, "listens on")
    with on_socket(home) as client:
        assert client.get("/akashic/v1/status").json()["pid"] == second.pid


def test_a_taken_port_is_a_usage_error_with_a_hint(home: Path, start: Start) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        daemon = start("--port", str(port))
        _, said = daemon.communicate(timeout=60)
    assert daemon.returncode == 2
    assert f"127.0.0.1:{port}" in said
    assert "hint: choose another --port" in said
    assert not find_paths({"AKASHIC_HOME": str(home)}).socket.exists()


@pytest.mark.parametrize("host", ["0.0.0.0", "example.org"])
def test_an_address_that_is_not_loopback_is_refused(start: Start, host: str) -> None:
    daemon = start("--host", host, "--port", "1")
    _, said = daemon.communicate(timeout=60)
    assert daemon.returncode == 2
    assert host in said
    assert "hint:" in said


def test_a_home_too_long_for_a_socket_is_refused_before_anything_starts(home: Path, smollm_path: Path) -> None:
    assert smollm_path
    env = {**os.environ, "AKASHIC_HOME": str(home / ("deep" * 30))}
    done = subprocess.run(
        [sys.executable, "-m", "akashic_daemon", "serve"],
        env=env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "107 bytes" in done.stderr
