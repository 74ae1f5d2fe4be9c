"""The daemon's log: its end in whole lines, and what is written from then on."""

from __future__ import annotations

from pathlib import Path

import pytest

from akashic_cli import daemon_log
from akashic_cli.__main__ import main
from akashic_cli.daemon_log import followed, log_tail
from akashic_daemon.errors import NotFound, UsageError
from akashic_daemon.paths import find_paths


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AKASHIC_HOME", str(tmp_path))
    monkeypatch.setattr(daemon_log, "_LOOK_S", 0)
    path = find_paths().daemon_log
    path.parent.mkdir()
    return path


@pytest.mark.parametrize("length", [1, 399, 5000])
@pytest.mark.parametrize("lines", [0, 1, 3, 99])
def test_the_end_is_whole_lines_however_long_they_are(log: Path, length: int, lines: int) -> None:
    written = [f"{number}{'x' * length}" for number in range(10)]
    log.write_text("\n".join(written) + "\n")
    assert log_tail(log, lines) == (written[-lines:] if lines else [])


def test_words_before_and_after_the_named_bytes_are_left_out(log: Path) -> None:
    log.write_text("before\nthen\nafter\n")
    assert log_tail(log, 9, start=7, end=12) == ["then"]


def test_a_log_is_followed_over_half_a_character_a_cut_and_a_move(log: Path) -> None:
    log.write_bytes(b"old\n")
    new = followed(log, 4)
    with log.open("ab") as file:
        file.write("één".encode()[:-2])
        file.flush()
        assert next(new) == "é"
        file.write("én\n".encode()[1:])
    assert next(new) == "én\n"
    log.write_text("anew\n")
    assert next(new) == "anew\n"
    log.rename(log.with_suffix(".1"))
    log.write_text("2\n")
    assert next(new) == "2\n"


def test_a_log_that_is_not_there_or_may_not_be_read_is_named(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["daemon", "logs"]) == NotFound.exit_code
    log.mkdir()
    assert main(["daemon", "logs"]) == UsageError.exit_code
    assert f"reading the daemon's log {log}: Is a directory" in capsys.readouterr().err


def test_control_characters_of_a_log_do_not_reach_the_terminal(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.write_text("a\x1b[2Jb\n")
    assert main(["daemon", "logs"]) == 0
    assert capsys.readouterr().out == "a\N{REPLACEMENT CHARACTER}[2Jb\n"
