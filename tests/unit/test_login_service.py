"""The daemon as a service of the login."""

from __future__ import annotations

import plistlib
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from akashic_cli.__main__ import main
from akashic_cli.login_service import AGENT_LABEL, UNIT_NAME, LoginService, login_service
from akashic_daemon.errors import Conflict, NotFound, Unsupported
from akashic_daemon.paths import find_paths

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
    made.install()
    assert made.file == tmp_path / ".config/systemd/user" / UNIT_NAME
    text = made.file.read_text()
    assert 'ExecStart="/opt/a place/python" -m akashic_daemon serve\n' in text
    assert f'Environment="AKASHIC_HOME={tmp_path}/a 100%% $$home"\n' in text
    assert "PrivateTmp" not in text  # a home, a model or a log in /tmp would be another one there
    assert [c[2:] for c in ran] == [["daemon-reload"], ["enable", "--now", UNIT_NAME]]
    made.install()
    made.uninstall()
    assert not made.is_installed
    assert [c[2:] for c in ran[-2:]] == [["disable", "--now", UNIT_NAME], ["daemon-reload"]]


def test_an_agent_is_a_property_list(tmp_path: Path, ran: list[Sequence[str]]) -> None:
    made = service(tmp_path, "darwin")
    made.install()
    body = plistlib.loads(made.file.read_bytes())
    assert (body["Label"], body["ProgramArguments"], body["KeepAlive"]) == (
        AGENT_LABEL, COMMAND, {"SuccessfulExit": False},
    )  # fmt: skip
    assert body["EnvironmentVariables"] == {"AKASHIC_HOME": f"{tmp_path}/a 100% $home"}
    made.uninstall()
    assert [c[1] for c in ran] == ["bootstrap", "bootout"]


def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path, ran: list[Sequence[str]]) -> None:
    made = service(tmp_path)
    made.file.parent.mkdir(parents=True)
    made.file.write_text("[Unit]\n")
    for change in (made.install, made.uninstall):
        with pytest.raises(Conflict, match="isn't ours"):
            change()
    assert made.file.read_text() == "[Unit]\n"
    assert ran == []


def test_what_is_not_there_or_not_possible_is_named(
    tmp_path: Path, ran: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotFound, match="there is no"):
        service(tmp_path).uninstall()
    made = LoginService(tmp_path / "unit", service(tmp_path).text, (["refused"],), ())
    with pytest.raises(Unsupported, match="`refused`: no bus"):
        made.install()
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
