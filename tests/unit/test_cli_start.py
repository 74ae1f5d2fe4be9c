"""How the command starts, and how it starts, finds and stops the daemon."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

import akashic_cli
from akashic_cli import autostart, complete
from akashic_cli.__main__ import main, report
from akashic_cli.client import Client
from akashic_daemon.errors import DaemonUnhealthy, StoreUnwritable
from akashic_daemon.paths import find_paths
from akashic_daemon.process.lifecycle import only_daemon
from cli_daemon import listening

FAKE = Path(__file__).parents[1] / "cli_daemon.py"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("AKASHIC_HOME", str(tmp_path))
    monkeypatch.setattr(autostart, "daemon_command", lambda: [sys.executable, str(FAKE)])
    # Children are left for the daemon's life; their Popen objects must not warn about it.
    monkeypatch.setattr(subprocess.Popen, "__del__", lambda self: None)
    yield tmp_path
    main(["daemon", "stop"])


def test_help_imports_no_engine_client_or_live_view() -> None:
    heavy = [
        "llama_cpp",
        "torch",
        "matplotlib",
        "numpy",
        "starlette",
        "uvicorn",
        "httpx",
        "rich.live",
        "pydantic",
        "prompt_toolkit",
    ]
    code = (
        "import sys, json\nfrom akashic_cli.__main__ import main\ncode = main(['--help'])\n"
        f"print(json.dumps([code, [m for m in {heavy!r} if m in sys.modules]]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == [0, []]
    assert "chat" in done.stdout


def test_version_is_data_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    from akashic_daemon import __version__

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"akashic {__version__}\n"


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["chat", "--bogus"], ["session", "fork"], ["stats", "--interval", "x"]]
)
def test_a_wrong_command_line_is_exit_code_2_with_a_hint(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert "hint: `akashic" in said.err


def test_an_unexpected_exception_is_one_error_line_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(RuntimeError("boom")) == 1
    assert capsys.readouterr().err.startswith("error: running akashic: unexpected RuntimeError: boom\nhint: ")


@pytest.mark.parametrize("command", [["session", "show"], ["mem", "search"], ["mem", "add"], ["chat"]])
def test_an_argument_that_is_no_text_is_named(command: list[str], home: Path) -> None:
    with listening():
        done = subprocess.run(
            [sys.executable, "-m", "akashic_cli", *command, b"a\xff"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
    assert done.returncode == 2
    assert "error: reading the command line: 'a?' is no UTF-8\nhint: give text as UTF-8\n" in done.stderr


def test_a_terminal_of_another_encoding_gets_what_it_can_show(home: Path) -> None:
    with listening():
        done = subprocess.run(
            [sys.executable, "-m", "akashic_cli", "chat", "hi"], env={**os.environ, "PYTHONIOENCODING": "ascii"},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "reused 90 ? computed 10" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is full")
def test_output_that_a_full_disk_refuses_is_named(home: Path) -> None:
    command = f"{sys.executable} -m akashic_cli config show >/dev/full"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == StoreUnwritable.exit_code
    assert done.stderr == "error: writing to stdout: No space left on device\nhint: free space there\n"


def test_closed_streams_are_no_error_and_talk_never_becomes_data(home: Path) -> None:
    with listening():
        for streams, out in ((">&-", ""), ("2>&-", "Hello from the fake daemon.\n")):
            command = f"{sys.executable} -m akashic_cli chat hi {streams} </dev/null"
            done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, timeout=60)
            assert (done.returncode, done.stdout) == (0, out), done.stderr


def test_an_interrupt_is_exit_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    from akashic_cli import app as tree

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tree, "app", interrupt)
    assert main(["stats"]) == 130


def test_the_first_command_starts_the_daemon_and_stop_waits_till_its_lock_is_free(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = find_paths()
    assert main(["session", "list"]) == 0
    assert autostart.lock_is_held(paths.lock)
    assert "fake daemon serves" in paths.daemon_log.read_text()
    assert paths.daemon_log.stat().st_mode & 0o777 == 0o600
    pid = int(paths.lock.read_text())
    assert main(["daemon", "start"]) == 0
    assert f"already runs, pid {pid}" in capsys.readouterr().err
    assert main(["daemon", "start", "--port", "1"]) == 1
    assert main(["daemon", "restart"]) == 0
    assert main(["daemon", "logs", "-n", "1"]) == 0
    assert capsys.readouterr().out == "fake daemon serves\n"
    assert main(["daemon", "stop"]) == 0
    assert not autostart.lock_is_held(paths.lock)
    assert main(["daemon", "stop"]) == 0
    assert "no daemon runs" in capsys.readouterr().err


def test_a_daemon_that_dies_at_its_start_is_quoted(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = find_paths().daemon_log
    log.parent.mkdir(parents=True)
    log.write_text("words of an earlier run\n")
    dying = [sys.executable, "-c", "import sys; sys.exit('the store is on fire')"]
    monkeypatch.setattr(autostart, "daemon_command", lambda: dying)
    assert main(["daemon", "start"]) == 3
    err = capsys.readouterr().err
    assert "the store is on fire" in err
    assert "earlier run" not in err


def test_a_disk_without_room_for_a_log_is_named(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(autostart, "daemon_command", lambda: [sys.executable, "-c", "raise SystemExit(120)"])
    full = SimpleNamespace(total=1 << 30, used=1 << 30, free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: full)
    assert main(["daemon", "start"]) == StoreUnwritable.exit_code
    said = capsys.readouterr().err
    assert f"the disk of {home / 'log'} is full" in said
    assert "hint: free space" in said


def test_an_invalid_flag_value_of_start_is_found_before_a_process_is_made(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["daemon", "start", "--kv-type", "q3"]) == 2
    assert "model.kv_type" in capsys.readouterr().err
    assert not find_paths().daemon_log.exists()


def test_a_stale_lock_file_names_no_running_daemon(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = find_paths()
    paths.runtime_dir.mkdir(parents=True)
    paths.lock.write_text(f"{os.getpid()}\n")
    assert main(["daemon", "stop"]) == 0
    assert "no daemon runs" in capsys.readouterr().err


def test_a_daemon_that_hangs_is_found_by_its_lock_without_being_asked(home: Path) -> None:
    paths = find_paths()
    paths.runtime_dir.mkdir(parents=True)
    hanging = cast(Client, SimpleNamespace(get=lambda _path: pytest.fail("it was asked")))
    with only_daemon(paths):
        assert autostart.find_pid(hanging, paths) == os.getpid()


def test_a_daemon_that_may_not_be_asked_is_not_said_to_be_none(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket, "socket", lambda *_: refuse())
    assert main(["daemon", "stop"]) == DaemonUnhealthy.exit_code
    said = capsys.readouterr().err
    assert "Permission denied" in said
    assert "no daemon" not in said


def test_tab_offers_nothing_of_a_daemon_that_does_not_answer(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complete, "ANSWER_TIMEOUT_S", 0.01)
    paths = find_paths()
    paths.runtime_dir.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(paths.socket))
        deaf.listen()
        assert complete.sessions("") == complete.models("") == []


def test_a_home_without_a_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "path", "--home", ""]) == 2
    assert "no folder is named" in capsys.readouterr().err


def test_a_path_in_the_home_of_nobody_is_named_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nobody = "~no-such-user-here"
    for arguments in (
        ["config", "path", "--home", f"{nobody}/a"],
        ["model", "add", f"{nobody}/a.gguf", "--no-autostart"],
    ):
        assert main(arguments) == 2
        assert f"`{nobody}` is no user's home folder\nhint: give the whole path" in capsys.readouterr().err
    monkeypatch.setenv("AKASHIC_HOME", nobody)
    assert main(["config", "path"]) == 2
    assert f"`{nobody}` is no user's home folder" in capsys.readouterr().err


def test_home_on_the_command_line_is_the_home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = os.environ.get("AKASHIC_HOME")
    try:
        assert main(["config", "path", "--home", str(tmp_path)]) == 0
        assert capsys.readouterr().out == f"{tmp_path / 'config.toml'}\n"
        assert main(["--home", str(tmp_path / "x"), "config", "path"]) == 0
        assert capsys.readouterr().out == f"{tmp_path / 'x' / 'config.toml'}\n"
    finally:
        os.environ.pop("AKASHIC_HOME", None)
        if before is not None:
            os.environ["AKASHIC_HOME"] = before


def test_every_command_module_has_a_docstring_for_its_users() -> None:
    from akashic_cli.docs.command_tree import commands, options

    assert akashic_cli.__doc__
    for name, command in commands():
        assert (command.help or "").strip(), name
        assert all(text for _, text in options(command)), name


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_the_shell_that_is_named(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert f"_AKASHIC_COMPLETE=complete_{shell}" in capsys.readouterr().out


def test_completion_of_an_unknown_shell_names_those_that_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert "'fish'" in capsys.readouterr().err
