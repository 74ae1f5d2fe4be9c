"""The board of `akashic stats`: every view fits every window, keys do what the help says, nothing of a session acts on it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text

from akashic_cli.dashboard.board import VIEWS, Board
from akashic_cli.dashboard.keys import parse
from akashic_cli.dashboard.lines import beside, cut, spark, table
from akashic_cli.dashboard.live import Found, ask, take
from akashic_cli.dashboard.views import draw
from akashic_daemon.errors import NotFound, Unsupported
from akashic_daemon.protocol.context import Explanation
from akashic_daemon.protocol.memory import MemoryStats, NamespaceStats
from akashic_daemon.protocol.native import EngineStatus, Miss, SessionActivity, SessionList, SessionSummary, Stats
from akashic_daemon.protocol.tiers import Moved, Moves, Tier, TierReport

SIZES = [(80, 24), (40, 10), (200, 60), (120, 30), (20, 4), (1, 1)]


def snapshot(at_s: float = 1.0, **given: Any) -> Stats:
    tiers = [
        Tier(tier=name, budget_bytes=1000, used_bytes=used, payload_bytes=used // 2, blocks=3)
        for name, used in (("gpu", 1000), ("ram", 400), ("ssd", 10))
    ]
    values = {
        "at_s": at_s, "uptime_s": 60.0, "engine": EngineStatus(model="fake", state="ready"), "tiers": TierReport(tiers=tiers),
        "prompt_tokens_total": 1000, "reused_tokens_total": 750, "computed_tokens_total": 250, "dropped_tokens_total": 123,
        "reposed_tokens_total": 45, "miss_causes": {"edited": 3, "evicted": 7},
        "activity": [SessionActivity(request="r1", session="talk", state="decode", generated_tokens=5)],
    }  # fmt: skip
    return Stats.model_validate({**values, **given})


def board(**given: Any) -> Board:
    made = Board(sessions=[SessionSummary(session=f"s{n}", title=f"about {n}") for n in range(100)])
    for second in range(5):
        moves = Moves(demoted=Moved(blocks=second, bytes=second * 1000))
        made.take(snapshot(float(second), tiers=TierReport(tiers=snapshot().tiers.tiers, moves=moves), **given))
    return made


def shown(made: Board, width: int = 80, height: int = 24) -> str:
    return "\n".join(line.plain for line in draw(made, width, height))


def wanted(made: Board) -> str | None:
    return made.wanted


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_every_view_fits_the_window(view: str, width: int, height: int) -> None:
    made = board()
    made.view = view
    made.memory = MemoryStats(namespaces=[NamespaceStats(namespace="n" * 300)], problems=["p" * 300])
    for opened in (None, "s1"):
        made.opened = opened
        lines = draw(made, width, height)
        assert len(lines) == height
        assert all(cell_len(line.plain) <= width for line in lines)


def test_a_terminal_of_80_by_24_shows_what_matters_at_once() -> None:
    text = shown(board(decode_tokens_per_s=31.5, first_token_p95_s=0.25))
    for words in (
        "fake (ready)", "31.5 tok/s", "p95 250 ms", "75.0% reused", "evicted 7, edited 3", "Drop 123 tokens", "Repos 45",
        "ram 400 B", "talk", "decode", "q leaves",
    ):  # fmt: skip
        assert words in text, words


def test_a_wide_window_shows_what_moves_between_tiers_beside_the_counters() -> None:
    assert "out of the engine" not in shown(board())
    assert "out of the engine" in shown(board(), 160, 40)
    assert "1000 B/s" in shown(board(), 160, 40)


def test_keys_switch_views_choose_a_session_open_it_and_leave() -> None:
    made = board()
    assert wanted(made) is None
    for key, view in zip("12345", VIEWS, strict=True):
        assert made.press(key)
        assert made.view == view
    assert wanted(made) == "memory"
    made.press("tab")
    assert made.view == VIEWS[0]
    made.press("2")
    assert wanted(made) == "sessions"
    for key in ("up", "down", "j", "down", "k"):
        made.press(key)
    assert made.selected == 2
    assert next(line for line in draw(made, 80, 24) if line.style == "reverse").plain.startswith("s2 ")
    made.press("enter")
    assert (made.opened, wanted(made)) == ("s2", "explanation")
    made.press("down")
    assert made.selected == 2
    made.press("escape")
    assert made.opened is None
    made.press("?")
    assert "choose a session" in shown(made)
    assert not made.press("q")


def test_the_chosen_session_is_in_sight_wherever_it_is_in_the_list() -> None:
    made = board()
    made.press("2")
    for _ in range(150):
        made.press("down")
    assert made.selected == 99
    for selected in (0, 1, 50, 98, 99):
        made.selected = selected
        assert f"s{selected} " in shown(made)


def test_a_held_picture_stays_and_goes_on_with_what_came_last() -> None:
    made = board()
    made.press(" ")
    made.take(snapshot(99.0, requests_total=77))
    assert made.now.at_s == 4.0
    assert "held" in shown(made)
    made.press(" ")
    made.take(snapshot(100.0, requests_total=77))
    assert "77, 0 failed" in shown(made)


def test_a_session_that_is_opened_tells_why_its_last_turn_missed() -> None:
    made = board()
    made.press("2")
    made.press("enter")
    miss = Miss(cause="text_differs", at_token=321)
    found = Explanation(
        turn=4, session="s0", at_s=0.0, model="fake", plan="plain", prompt_tokens=900, computed_tokens=200,
        reused_tokens=700, miss=miss,
    )  # fmt: skip
    take(made, Found("explanation", "another", found))
    assert "none is known" in shown(made)
    take(made, Found("explanation", "s0", found))
    assert "text_differs at token 321" in shown(made)
    assert "700 tokens" in shown(made)


class Daemon:
    """Answers what it is told to, or raises it."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[str] = []

    def get(self, path: str) -> Any:
        self.asked.append(path)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_what_a_view_needs_is_asked_for_and_what_fails_is_said() -> None:
    sessions = Daemon(SessionList(sessions=[SessionSummary(session="one")]).model_dump())
    made = board()
    take(made, ask(sessions, "sessions", None))  # type: ignore[arg-type]
    assert [s.session for s in made.sessions] == ["one"]
    off = Daemon(Unsupported("asking for memory: it is off"))
    made.press("5")
    take(made, ask(off, "memory", None))  # type: ignore[arg-type]
    assert "it is off" in shown(made)
    untold = Daemon(NotFound("explaining one: no turn"))
    found = ask(untold, "explanation", "a/b")  # type: ignore[arg-type]
    assert (found.value, found.trouble) == (None, "")
    assert untold.asked == ["/sessions/a%2Fb/explain"]


def test_control_characters_of_a_session_never_reach_the_terminal() -> None:
    made = board(activity=[SessionActivity(request="r", session="a\x1b[2Jb\nc", state="prefill")])
    made.sessions = [SessionSummary(session="x", title="\x1b]0;title\x07 \n two")]
    for view in VIEWS:
        made.view = view
        assert all(line.plain.isprintable() for line in draw(made, 100, 30))


def test_keys_are_read_as_terminals_send_them() -> None:
    assert list(parse("\x1b[A\x1bOBj\r\t \x1b")) == ["up", "down", "j", "enter", "tab", " ", "escape"]
    assert list(parse("\x1b[5~q\x1b[1;5Cx\x1b[200~")) == ["q", "x"]


@given(st.text())
def test_whatever_is_typed_is_read_to_its_end(typed: str) -> None:
    made = board()
    for key in parse(typed):
        made.press(key)
    assert len(draw(made, 80, 24)) == 24


@given(st.text(), st.integers(0, 30))
def test_a_text_is_cut_to_its_cells(text: str, width: int) -> None:
    assert cell_len(cut(text, width)) <= width


@given(st.lists(st.lists(st.text(max_size=12), min_size=3, max_size=3), max_size=4), st.integers(8, 60))
def test_a_table_has_a_line_a_row_in_its_width(rows: list[list[str]], width: int) -> None:
    lines = table(("ONE", "TWO", "THREE"), rows, width)
    assert len(lines) == len(rows) + 1
    assert all(cell_len(line.plain) <= width for line in lines)


def test_a_sparkline_is_as_high_as_its_highest_and_shows_the_newest() -> None:
    assert spark([0, 1, 2, 4, 8], 4) == "▂▃▅█"
    assert spark([0, 0], 5) == "▁▁"
    assert spark([], 5) == ""


def test_panes_stand_beside_each_other_however_long_they_are() -> None:
    lines = beside([Text("a"), Text("bb")], [Text("x")], 3)
    assert [line.plain.rstrip() for line in lines] == ["a    x", "bb"]


def test_rates_are_those_of_a_second_and_a_restart_is_no_negative_one() -> None:
    made = Board()
    for at_s, total in ((0.0, 0), (2.0, 10), (3.0, 1)):
        made.take(snapshot(at_s, requests_total=total))
    assert made.rates(lambda s: s.requests_total) == [5.0, 0.0]
