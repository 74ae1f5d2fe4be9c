"""`session export --with-kv` and what `import` says of KV, against a daemon that isn't one."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import cli_daemon
from akashic_cli.__main__ import main
from akashic_daemon.errors import StoreError
from akashic_daemon.protocol import archive, native
from akashic_daemon.protocol.archive import Kind
from cli_daemon import FakeDaemon

SAID = {"messages": 3, "blocks": 2, "tokens": 1234, "kv_bytes": 4096, "notes": ["2 blocks are gone"]}


def file_with(last: Kind, head: dict[str, Any]) -> bytes:
    """Return an exported session."""
    pieces = [*archive.part(Kind.KV, {"key": "k"}, os.urandom(200_000)), *archive.part(last, head)]
    return archive.begin() + b"".join(pieces)


def answer(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """Let the daemon send this as a session's file."""

    def export(self: Any, _name: str, **_: Any) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    monkeypatch.setattr(cli_daemon._Handler, "export", export)


def test_a_session_is_written_with_its_kv_and_told_what_went_in(
    daemon: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data, target = file_with(Kind.END, SAID), tmp_path / "one.aks"
    answer(monkeypatch, data)
    assert main(["session", "export", "one", "--with-kv", "-o", str(target)]) == 0
    assert target.read_bytes() == data
    assert target.stat().st_mode & 0o777 == 0o600
    err = capsys.readouterr().err
    assert "3 messages, 2 blocks of KV (1,234 tokens" in err
    assert "note: 2 blocks are gone" in err
    assert daemon.requests[-1] == ("GET", "/akashic/v1/sessions/one/export", {"kv": "1"})


def test_without_a_file_it_goes_to_stdout(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    data = file_with(Kind.END, SAID)
    answer(monkeypatch, data)
    assert main(["session", "export", "one", "--with-kv"]) == 0
    assert capfdbinary.readouterr().out == data


def test_a_terminal_is_not_written_to(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["session", "export", "one", "--with-kv"]) == 2
    assert "-o FILE" in capsys.readouterr().err
    assert daemon.requests == []


@pytest.mark.parametrize("kind", ["cut", "failed"])
def test_a_download_that_breaks_off_leaves_no_file_and_says_why(
    daemon: FakeDaemon,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: str,
) -> None:
    data, target = file_with(Kind.END, SAID)[:-1], tmp_path / "one.aks"
    if kind == "failed":
        data = file_with(Kind.FAIL, StoreError("the disk is gone").to_wire())
    answer(monkeypatch, data)
    assert main(["session", "export", "one", "--with-kv", "-o", str(target)]) == 1
    assert [p.name for p in tmp_path.iterdir() if ".aks" in p.name] == []
    err = capsys.readouterr().err
    assert ("the disk is gone" if kind == "failed" else "went away before the end") in err


@pytest.mark.parametrize(
    ("kv", "said"),
    [
        (native.ImportedKv(blocks=4, tokens=512, kv_bytes=2048, known_blocks=3, left_out_blocks=2), "took 4 blocks"),
        (native.ImportedKv(detail="its KV was left out, for it was computed otherwise: KV type changed"), "KV type"),
    ],
)
def test_an_import_says_what_came_of_the_kv(
    daemon: FakeDaemon,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kv: native.ImportedKv,
    said: str,
) -> None:
    done = native.ImportEvent(kind="done", messages=1, format=archive.FORMAT, kv=kv)

    def take(self: Any, **_: Any) -> None:
        self._lines(iter([done.model_dump_json()]))

    monkeypatch.setattr(cli_daemon._Handler, "import_transcript", take)
    file = tmp_path / "one.aks"
    file.write_bytes(archive.begin())
    assert main(["import", str(file)]) == 0
    err = capsys.readouterr().err
    assert said in err
    assert ("3 were here already; 2 left out" in err) == bool(kv.blocks)
    assert main(["import", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kv"] == kv.model_dump()
