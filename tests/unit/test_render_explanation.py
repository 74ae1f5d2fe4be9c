"""How an explanation is shown: a line for each message, cut where a terminal ends and whole elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from akashic_cli.render import explanation as shown
from akashic_daemon.protocol.context import ExplainedSegment, Explanation

LABEL = "The parrot Quasimodo sings of herons, lockers and the rent of a small house by the sea"


def printed(monkeypatch: pytest.MonkeyPatch, width: int) -> list[str]:
    file = io.StringIO()
    monkeypatch.setattr(shown, "out", lambda: Console(file=file, width=width, highlight=False))
    segments = [ExplainedSegment(message=n, role="user", label=LABEL, tokens=9, reused=9) for n in range(2)]
    shown.print_explanation(
        Explanation(
            session="s", turn=1, at_s=0.0, model="m", plan="plain", prompt_tokens=18, reused_tokens=18, computed_tokens=0,
            segments=segments,
        )
    )  # fmt: skip
    return [line for line in file.getvalue().splitlines() if "user" in line]


def test_a_message_is_one_line_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(monkeypatch, 100)
    assert [len(line) for line in lines] == [100, 100]
    assert all(line.endswith("…") for line in lines)


def test_where_there_is_room_it_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(line.endswith(LABEL) for line in printed(monkeypatch, 400))
