"""The live commands, as a person at a terminal meets them, against a daemon on the fake engine."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from akashic_cli import complete
from akashic_daemon.paths import Paths, find_paths
from fake_daemon import DEADLINE_S, daemon, on_socket
from fake_service import register
from terminal import terminal

CTRL_C, CTRL_D, ALT_ENTER, UP = "\x03", "\x04", "\x1b\r", "\x1b[A"


@pytest.fixture
def paths(home: Path) -> Iterator[Paths]:
    register(home, ["fake"])
    with daemon(home):
        yield find_paths({"AKASHIC_HOME": str(home)})


@pytest.fixture
def env(home: Path, paths: Paths) -> dict[str, str]:
    return {"AKASHIC_HOME": str(home)}


def messages(paths: Paths, session: str) -> list[dict[str, Any]]:
    with on_socket(paths) as client:
        lines = client.get(f"/akashic/v1/sessions/{session}/export").text.splitlines()
    return [json.loads(line) for line in lines]


def wait_for_words(paths: Paths) -> None:
    """Wait until the daemon has told a client some words of an answer that isn't finished."""
    deadline_s = time.monotonic() + DEADLINE_S
    with (
        on_socket(paths) as client,
        client.stream("GET", "/akashic/v1/stats/stream", params={"interval_s": 0.1}) as seen,
    ):
        for line in seen.iter_lines():
            snapshot = json.loads(line)
            if any(item["generated_tokens"] > 32 for item in snapshot["activity"]):
                return
            assert time.monotonic() < deadline_s, f"no answer is being given: {snapshot}"


def test_ctrl_c_stops_the_answer_and_the_session_goes_on(env: dict[str, str], paths: Paths) -> None:
    with terminal("chat", "-s", "talk", "--max-tokens", "100000", "--no-autostart", env=env) as screen:
        for question in ("first question", "second question"):
            screen.expect_prompt()
            screen.type(question + "\r")
            wait_for_words(paths)
            screen.type(CTRL_C)
            screen.expect("stopped; the session keeps what was said")
        screen.expect_prompt()
        screen.type(CTRL_D)
        assert screen.exit_code() == 0
    told = messages(paths, "talk")
    assert [message["role"] for message in told] == ["user", "assistant", "user", "assistant"]
    assert [told[0]["content"], told[2]["content"]] == ["first question", "second question"]
    assert 0 < len(told[1]["content"]) < 100_000


def test_lines_history_and_the_way_out_work_as_in_a_shell_and_the_next_prompt_reuses(
    env: dict[str, str], paths: Paths
) -> None:
    with terminal("chat", "-s", "talk", "--max-tokens", "8", env=env) as screen:
        for keys, shown in (
            (f"one{ALT_ENTER}two\r", "reused 0 "),
            ("never sent" + CTRL_C, "never sent"),
            ("/session\r", "session talk"),
            ("again\r", "prompt tokens"),
        ):
            screen.expect_prompt()
            screen.type(keys)
            screen.expect(shown)
        screen.expect_prompt()
        screen.type("/quit\r")
        assert screen.exit_code() == 0
    with terminal("chat", "-s", "talk", "--max-tokens", "8", env=env) as screen:
        screen.expect_prompt()
        screen.type(UP * 4)
        screen.expect("two")
        screen.type("\r")
        screen.expect("prompt tokens")
        [(reused, computed)] = re.findall(r"reused (\d+) . computed (\d+)", screen.text)
        screen.expect_prompt()
        screen.type(CTRL_D)
        assert screen.exit_code() == 0
    asked = [message["content"] for message in messages(paths, "talk") if message["role"] == "user"]
    assert asked == ["one\ntwo", "again", "one\ntwo"]
    assert int(reused) > int(computed)


def test_ctrl_c_ends_a_single_question_with_130_and_tells_how_to_go_on(env: dict[str, str], paths: Paths) -> None:
    with terminal("chat", "-s", "talk", "--max-tokens", "100000", "question", env=env) as screen:
        wait_for_words(paths)
        screen.type(CTRL_C)
        screen.expect("`akashic chat -s talk` goes on")
        assert screen.exit_code() == 130
    assert [message["role"] for message in messages(paths, "talk")] == ["user", "assistant"]


def test_live_stats_follow_the_window_and_end_with_130_and_the_screen_given_back(env: dict[str, str]) -> None:
    with terminal("stats", "--interval", "0.1", env=env) as screen:
        screen.expect_raw(b"\x1b[?1049h")
        screen.expect("no request runs")
        screen.resize(24, 40)
        screen.expect("\n" + " " * 40 + "\n")
        screen.resize(24, 100)
        screen.expect("\n" + " " * 100 + "\n")
        screen.type(CTRL_C)
        assert screen.exit_code() == 130
        taken, _, after = screen.raw.partition(b"\x1b[?1049l")
        assert taken.count(b"\x1b[?1049h") == 1
        assert b"no request runs" in after


def test_keys_show_a_session_of_the_live_board_and_leave_the_terminal_as_it_was(
    env: dict[str, str], paths: Paths
) -> None:
    with on_socket(paths) as client:
        assert client.post("/akashic/v1/sessions/alpha/turn", json={"prompt": "x", "max_tokens": 1}).is_success
    with terminal("stats", "--interval", "0.1", env=env) as screen:
        screen.expect("no request runs")
        screen.type("2")
        screen.expect("alpha")
        screen.type("\r")
        screen.expect("last turn")
        screen.expect("computed")
        screen.type("\x1b5")
        screen.expect("compactor")
        screen.type("q")
        assert screen.exit_code() == 0
        assert b"no request runs" in screen.raw.partition(b"\x1b[?1049l")[2]


def test_no_color_leaves_colours_out_of_a_conversation(env: dict[str, str]) -> None:
    colour = re.compile(rb"\x1b\[(?:[0-9]+;)*(?:3[0-8]|4[0-8]|9[0-7])(?:;[0-9]+)*m")
    seen = {}
    for name, setting in (("with", {}), ("without", {"NO_COLOR": "1"})):
        with terminal("chat", "--max-tokens", "8", env={**env, **setting}) as screen:
            screen.expect_prompt()
            screen.type("`code`\r")
            screen.expect("prompt tokens")
            screen.expect_prompt()
            screen.type(CTRL_D)
            assert screen.exit_code() == 0
            seen[name] = colour.findall(screen.raw)
    assert seen["with"]
    assert not seen["without"]


def test_tab_completes_sessions_and_models_and_starts_no_daemon(
    paths: Paths, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with on_socket(paths) as client:
        for name in ("alpha", "beta"):
            assert client.post(f"/akashic/v1/sessions/{name}/turn", json={"prompt": "x", "max_tokens": 1}).is_success
    assert complete.sessions("") == ["beta", "alpha"]
    assert complete.sessions("al") == ["alpha"]
    assert "fake" in complete.models("fa")
    monkeypatch.setenv("AKASHIC_HOME", str(tmp_path))
    assert complete.sessions("") == []
    assert list(tmp_path.iterdir()) == []
    assert complete.settings("serve.po") == ["serve.port"]


def test_a_session_that_was_not_named_is_chosen_by_a_few_letters(env: dict[str, str], paths: Paths) -> None:
    with on_socket(paths) as client:
        for name, text in (("first-one", "about parrots"), ("second-one", "about rent")):
            body = {"messages": [{"role": "user", "content": text}], "max_tokens": 4, "akashic": {"session": name}}
            assert client.post("/v1/chat/completions", json=body).status_code == 200
    with terminal("session", "show", env=env) as person:
        person.expect_prompt()
        person.type("zz\r")
        person.expect("no session has these letters")
        person.type("\x15parr\r")
        assert person.exit_code() == 0
    assert "about parrots" in person.text.rsplit("--- 0 user", 1)[1]
