"""The daemon as a service of the login."""

from __future__ import annotations

import plistlib
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from akashic_cli import autostart
from akashic_cli.__main__ import main
from akashic_cli.login_service import AGENT_LABEL, UNIT_NAME, LoginService, login_service
from akashic_daemon.errors import ConfigError, Conflict, NotFound, Unsupported
from akashic_daemon.paths import find_paths
from cli_daemon import FakeDaemon, listening

COMMAND = ["/opt/a place/python", "-m", "akashic_daemon", "serve"]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    commands: list[Sequence[str]] = []

    def run(command: Sequence[str], **_: object) -> SimpleNamespace:
        commands.append(command)
        refused = "refused" in command
        return SimpleNamespace(returncode=int(refused), stdout="", stderr="no bus\n" if refused else "")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    return commands


def service(home: Path, platform: str = "linux") -> LoginService:
    environ = {"HOME": str(home), "AKASHIC_HOME": f"{home}/a 100% $home"}
    return login_service(find_paths(environ), COMMAND, environ=environ, platform=platform)


def test_a_unit_names_the_command_and_the_home_as_systemd_reads_them(tmp_path: Path, ran: list[Sequence[str]]) -> None:
    made = service(tmp_path)
    made.write()
    made.start()
    assert made.file == tmp_path / ".config/systemd/user" / UNIT_NAME
    text = made.file.read_text()
    assert 'ExecStart="/opt/a place/python" -m akashic_daemon serve\n' in text
    assert f'Environment="AKASHIC_HOME={tmp_path}/a 100%% $home"\n' in text  # variables don't work there
    assert f"StandardError=append:{tmp_path}/a 100%% $home/log/daemon.log\n" in text  # `akashic daemon logs` reads it
    assert "PrivateTmp" not in text  # a home, a model or a log in /tmp would be another one there
    assert [c[2:] for c in ran] == [["daemon-reload"], ["enable", UNIT_NAME], ["restart", UNIT_NAME]]
    made.write()
    made.uninstall()
    assert not made.is_installed
    assert [c[2:] for c in ran[-2:]] == [["disable", "--now", UNIT_NAME], ["daemon-reload"]]


def test_only_arguments_of_a_unit_have_their_dollars_doubled(tmp_path: Path, ran: list[Sequence[str]]) -> None:
    environ = {"HOME": str(tmp_path)}
    made = login_service(find_paths(environ), ["/opt/$x/python", "-c", "$y"], environ=environ, platform="linux")
    assert "ExecStart=/opt/$x/python -c $$y\n" in made.text.decode()


def test_a_service_runs_when_its_manager_says_so_of_the_file_as_it_is_written_today(
    tmp_path: Path, ran: list[Sequence[str]]
) -> None:
    made = service(tmp_path)
    assert not made.runs()
    assert ran == []
    made.write()
    assert made.is_current
    assert made.runs()
    assert not replace(made, running=["refused"]).runs()
    made.file.write_bytes(made.text + b"Nice=5\n")
    assert not made.runs()


def test_an_agent_is_a_property_list(tmp_path: Path, ran: list[Sequence[str]]) -> None:
    made = service(tmp_path, "darwin")
    made.write()
    made.start()
    body = plistlib.loads(made.file.read_bytes())
    assert (body["Label"], body["ProgramArguments"], body["KeepAlive"]) == (
        AGENT_LABEL, COMMAND, {"SuccessfulExit": False},
    )  # fmt: skip
    assert body["EnvironmentVariables"] == {"AKASHIC_HOME": f"{tmp_path}/a 100% $home"}
    assert body["ProcessType"] == "Interactive"  # others are slowed down
    made.uninstall()
    # What is loaded already can't be loaded again.
    assert [c[1] for c in ran] == ["bootout", "bootstrap", "bootout"]
    replace(made, let_go=["refused"]).start()
    assert ran[-1][1] == "bootstrap"


def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path, ran: list[Sequence[str]]) -> None:
    made = service(tmp_path)
    made.file.parent.mkdir(parents=True)
    made.file.write_text("[Unit]\n")
    for change in (made.write, made.uninstall):
        with pytest.raises(Conflict, match="isn't ours"):
            change()
    assert made.file.read_text() == "[Unit]\n"
    assert ran == []


def test_what_is_not_there_or_not_possible_is_named(
    tmp_path: Path, ran: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotFound, match="there is no"):
        service(tmp_path).uninstall()
    made = replace(service(tmp_path), enable=(["refused"],), restarting=["refused"])
    for change in (made.start, made.restart):
        with pytest.raises(Unsupported, match="`refused`: no bus"):
            change()
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(Unsupported, match="let your service manager run"):
        service(tmp_path)


def test_the_command_prints_what_it_would_write(
    tmp_path: Path, ran: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AKASHIC_HOME", str(tmp_path))
    assert main(["daemon", "install", "--print"]) == 0
    assert f"AKASHIC_HOME={tmp_path}" in capsys.readouterr().out
    assert ran == []


@pytest.fixture
def installed(tmp_path: Path, ran: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    """A daemon that answers and runs, as its manager says, as the service of this home."""
    monkeypatch.setenv("AKASHIC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr(autostart, "stop_daemon", lambda _client, _paths: ran.append(["stopped"]))
    with listening() as daemon:
        yield daemon


def test_installing_writes_the_file_before_the_daemon_is_stopped_and_waits_for_the_new_one(
    installed: FakeDaemon, ran: list[Sequence[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unit = tmp_path / ".config/systemd/user" / UNIT_NAME
    unit.parent.mkdir(parents=True)
    unit.write_text("[Unit]\n")
    assert main(["daemon", "install"]) == Conflict.exit_code
    assert ran == []  # the daemon that ran goes on
    unit.unlink()
    assert main(["daemon", "install"]) == 0
    assert [c[-1] for c in ran] == ["stopped", "daemon-reload", UNIT_NAME, UNIT_NAME]
    assert ("GET", "/healthz", {}) in installed.requests
    assert "runs as a service now" in capsys.readouterr().err


def test_restarting_leaves_a_service_to_its_manager(
    installed: FakeDaemon, ran: list[Sequence[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    login_service(find_paths(), autostart.daemon_command()).write()
    assert main(["daemon", "restart"]) == 0
    assert [c[2] for c in ran] == ["is-active", "restart"]
    assert "started by" in capsys.readouterr().err


def test_stopping_a_service_is_its_managers_affair_which_else_restarts_one_that_ended_by_force(
    installed: FakeDaemon, ran: list[Sequence[str]]
) -> None:
    login_service(find_paths(), autostart.daemon_command()).write()
    assert main(["daemon", "stop"]) == 0
    assert [c[2:3] or c for c in ran] == [["is-active"], ["stop"], ["stopped"]]


def test_settings_that_no_daemon_could_start_with_leave_the_running_one_alone(
    installed: FakeDaemon, ran: list[Sequence[str]], tmp_path: Path
) -> None:
    (tmp_path / "home" / "config.toml").write_text("[serve]\nport = 99999\n")
    for command in ("install", "restart"):
        assert main(["daemon", command]) == ConfigError.exit_code
    assert ran == []
