"""`akashic mem watch` on a daemon: what it prints, and that it ends with either side."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from akashic_cli.__main__ import main
from akashic_daemon.paths import find_paths
from fake_daemon import daemon, on_socket
from fake_service import register

WATCH = "/akashic/v1/memory/watch"
WISH = {"type": "user", "uuid": "u1", "sessionId": "s", "message": {"role": "user", "content": "a parrot, please"}}


@pytest.fixture
def logs(home: Path) -> Path:
    register(home, ["fake"])
    folder = home / "logs"
    folder.mkdir()
    (folder / "s.jsonl").write_text(json.dumps(WISH) + "\n{broken\n")
    return folder


def test_what_was_read_is_told_once_and_found(home: Path, logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with daemon(home):
        assert main(["mem", "watch", str(logs), "--once", "--namespace", "project:zoo"]) == 0
        told = capsys.readouterr()
        assert told.out == ""
        assert "s.jsonl, line 2: broken JSON" in told.err
        assert "s.jsonl: 1 new turns" in told.err
        assert "1 new turns, 0 known ones" in told.err
        assert main(["mem", "watch", str(logs), "--once", "--namespace", "project:zoo", "--json"]) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [line["kind"] for line in lines] == ["watching"]
        assert main(["mem", "search", "parrot", "--json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)["found"]
        assert found["source"] == str(logs / "s.jsonl")


def test_a_path_that_is_not_there_is_named(home: Path, logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with daemon(home):
        for path in (str(logs / "none"), "~nobody-of-that-name"):
            assert main(["mem", "watch", path, "--once"]) == 2
            assert f"{Path(path).absolute()}: there is no such folder or file" in capsys.readouterr().err


def test_a_watch_neither_outlives_its_client_nor_holds_the_daemon_up(home: Path, logs: Path) -> None:
    body = {"paths": [str(logs)]}
    with daemon(home) as process, on_socket(find_paths({"AKASHIC_HOME": str(home)})) as client:
        with client.stream("POST", WATCH, json=body) as answer:
            lines = answer.iter_lines()  # kept: the connection is closed with it
            assert json.loads(next(lines))["kind"] == "watching"
            assert client.post(WATCH, json={**body, "once": True}).status_code == 409
            del lines
        while client.post(WATCH, json={**body, "once": True}).status_code == 409:
            pass  # it ends when the daemon notices that its client has gone
        while True:
            with client.stream("POST", WATCH, json=body) as answer:
                if answer.status_code == 409:
                    continue
                lines = answer.iter_lines()
                assert json.loads(next(lines))["kind"] == "watching"
                process.send_signal(signal.SIGTERM)
                assert process.wait(60) == 0
                break
