"""What stops a daemon from beginning is named; how it ends tells its clients the truth."""

from __future__ import annotations

import inspect
import json
import os
import resource
import signal
import socket
import time
from pathlib import Path

import pytest

from akashic_daemon.config import ServeSection, load, log_level
from akashic_daemon.errors import AkashicError, ConfigError, DaemonRunning, StoreUnwritable
from akashic_daemon.paths import Paths, ensure_private_dir, find_paths
from akashic_daemon.process.lifecycle import only_daemon, serve, unix_socket
from akashic_daemon.process.tcp_port import tcp_socket
from fake_daemon import DEADLINE_S, daemon, on_socket
from fake_service import register


@pytest.fixture
def paths(home: Path) -> Paths:
    register(home, ["fake"])
    return find_paths({"AKASHIC_HOME": str(home)})


def test_a_stream_that_the_end_of_the_daemon_cuts_off_ends_with_an_error(home: Path, paths: Paths) -> None:
    body = {"messages": [{"role": "user", "content": "go on"}], "stream": True}
    with daemon(home) as process, on_socket(paths) as client:
        with client.stream("POST", "/v1/chat/completions", json=body) as response:
            events = (json.loads(x[6:]) for x in response.iter_lines() if x.startswith("data: {"))
            assert "choices" in next(events)
            process.send_signal(signal.SIGTERM)
            *_, last = events
        assert last["error"]["code"] == "cancelled"
        assert process.wait(10) == 0
        assert not paths.socket.exists()


def test_a_daemon_that_cannot_stop_is_ended_by_force_and_the_next_one_starts(home: Path, paths: Paths) -> None:
    with daemon(home, "--wedged", "--stop-limit", "0.1") as process:
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 1
        assert "not stopped after 0.1 s: ending by force" in said
    with daemon(home), on_socket(paths) as client:
        assert client.get("/healthz").status_code == 200


def test_a_daemon_whose_model_never_loads_ends_in_good_order_without_finalising_python(
    home: Path, paths: Paths
) -> None:
    with daemon(home, "--endless-load", "--stop-limit", str(DEADLINE_S)) as process:
        until_s = time.monotonic() + DEADLINE_S
        while not (paths.store_dir / "load-has-begun").exists():
            assert time.monotonic() < until_s
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, said
    assert "the engine thread did not end in 6 s" in said
    assert said.rstrip().endswith("stopped")
    assert not paths.socket.exists()


def test_a_daemon_takes_as_many_files_as_it_may_have(home: Path, paths: Paths) -> None:
    register(home, ["fake"])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        with daemon(home) as process:
            limits = Path(f"/proc/{process.pid}/limits").read_text()
            with on_socket(paths) as client:
                assert client.get("/healthz").status_code == 200
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    (line,) = [line for line in limits.splitlines() if line.startswith("Max open files")]
    assert int(line.split()[3]) == (8192 if hard == resource.RLIM_INFINITY else min(8192, hard))


def test_the_deadline_of_stopping_is_below_the_promised_ten_seconds() -> None:
    assert inspect.signature(serve).parameters["stop_limit_s"].default < 10


def test_the_lock_is_held_once_names_its_holder_and_is_free_again(paths: Paths) -> None:
    with only_daemon(paths):
        assert paths.lock.read_text() == str(os.getpid())
        with pytest.raises(DaemonRunning, match=str(os.getpid())), only_daemon(paths):
            raise AssertionError("two hold the lock")
    with only_daemon(paths):
        pass


def test_two_daemons_never_have_one_store_though_their_runtime_folders_differ(tmp_path: Path) -> None:
    """A login session has XDG_RUNTIME_DIR, a cron job hasn't."""
    login = find_paths({"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "run")})
    cron = find_paths({"HOME": str(tmp_path)})
    assert login.store_dir == cron.store_dir
    with only_daemon(login):
        with pytest.raises(DaemonRunning, match=f"pid {os.getpid()}.*{login.store_dir}") as caught, only_daemon(cron):
            raise AssertionError("two have the store")
        assert "XDG_RUNTIME_DIR" in (caught.value.hint or "")
    with only_daemon(cron):
        pass


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_named_when_the_lock_is_written(paths: Paths) -> None:
    ensure_private_dir(paths.runtime_dir)
    paths.lock.symlink_to("/dev/full")
    with pytest.raises(StoreUnwritable, match=r"akashic\.lock") as caught, only_daemon(paths):
        raise AssertionError("it began")
    assert caught.value.exit_code == 1


def test_a_folder_in_the_place_of_the_socket_is_named(paths: Paths) -> None:
    paths.socket.mkdir(parents=True)
    with pytest.raises(StoreUnwritable, match=r"akashic\.sock"):
        unix_socket(paths)


def test_a_file_in_the_place_of_the_runtime_folder_is_named(paths: Paths) -> None:
    paths.runtime_dir.write_text("")
    with pytest.raises(StoreUnwritable, match="run"), only_daemon(paths):
        raise AssertionError("it began")


def test_a_stale_socket_gives_way(paths: Paths) -> None:
    ensure_private_dir(paths.runtime_dir)
    for _ in range(2):
        unix_socket(paths).close()
        assert paths.socket.exists()


@pytest.mark.parametrize("listens", [True, False])
def test_a_taken_port_is_refused_with_what_to_do(listens: bool) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        if listens:
            other.listen()
        with pytest.raises(ConfigError, match=r"127\.0\.0\.1") as caught:
            tcp_socket(ServeSection(port=other.getsockname()[1]))
    assert "--port" in (caught.value.hint or "")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", ""])
def test_only_loopback_addresses_are_served(host: str) -> None:
    with pytest.raises(ConfigError):
        tcp_socket(ServeSection(host=host, port=1))


def test_a_log_level_that_does_not_exist_is_refused(home: Path) -> None:
    assert log_level({}) == "INFO"
    assert log_level({"AKASHIC_LOG_LEVEL": "Debug"}) == "DEBUG"
    with pytest.raises(AkashicError, match="loud"):
        log_level({"AKASHIC_LOG_LEVEL": "loud"})
    load(home / "config.toml", env={"AKASHIC_LOG_LEVEL": "debug"})
