"""Choosing a session by a few letters."""

from __future__ import annotations

import pytest

from akashic_cli import pick
from akashic_cli.__main__ import main
from akashic_daemon.errors import UsageError

NAMES = {"import-0a1b": "Invoices don't round", "api-77": "look at the parrots", "chat-ab": "", "abc": "Xylophone"}


@pytest.mark.parametrize(
    ("letters", "found"),
    [
        ("", ["import-0a1b", "api-77", "chat-ab", "abc"]),
        ("ab", ["abc", "chat-ab", "import-0a1b"]),
        ("PARROT", ["api-77"]),
        ("imp1b", ["import-0a1b"]),
        ("xy", ["abc"]),
        ("zz", []),
        (".*", []),
    ],
)
def test_names_come_before_titles_and_the_nearest_letters_first(letters: str, found: list[str]) -> None:
    assert pick.matching(letters, NAMES) == found


def test_without_a_terminal_the_name_is_asked_for_and_nothing_is_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(UsageError, match="choosing a session: none is named"):
        pick.session()
    assert main(["explain"]) == 2
    assert "`akashic session list`" in capsys.readouterr().err


def test_a_chunk_is_asked_for_too_and_nothing_is_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert main(["mem", "history"]) == 2
    assert "`akashic mem inspect` lists chunks" in capsys.readouterr().err
