"""Bad input of memory at a daemon process: every command says what is wrong or missing, and nothing that is good is lost."""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from akashic_cli.__main__ import main
from akashic_daemon.paths import find_paths
from fake_daemon import daemon, on_socket
from fake_service import register

TURNS = "/akashic/v1/memory/turns"
Shown = Callable[..., Any]


@pytest.fixture(scope="module")
def running() -> Iterator[Path]:
    # A socket's path is short.
    with tempfile.TemporaryDirectory(prefix="akb") as name:
        register(Path(name), ["fake"])
        with daemon(Path(name), "--set", "cache.ssd_bytes=0", "--set", "cache.ram_bytes=0"):
            yield Path(name)


@pytest.fixture
def shown(running: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shown:
    """Run a command with --json and return what it prints; memory may have what other tests left, in their namespaces."""
    monkeypatch.setenv("AKASHIC_HOME", str(running))

    def run(*command: str) -> Any:
        assert main([*command, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def test_everything_can_be_asked_of_an_empty_memory_and_says_what_fills_it(
    home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    register(home, ["fake"])
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    fills = "memory is empty; `akashic mem add`"
    told = (
        (["inspect"], fills),
        (["inspect", "nobody"], "memory holds nothing of nobody"),
        (["inspect", "--map"], fills),
        (["inspect", "--state", "open"], "memory holds nothing like that"),
        (["search", "parrot"], fills),
        (["search", "parrot", "--namespace", "project:zoo"], fills),
        (["stats"], fills),
        (["compact"], fills),
        (["export"], fills),
        (["import", str(tmp_path / "empty")], "has no turns"),
        (["forget", "--session", "nobody"], "nothing in memory is like that"),
        (["watch", str(tmp_path / "folder"), "--once"], "--include names others"),
    )
    with daemon(home):
        for command, words in told:
            assert main(["mem", *command]) == 0, command
            said = capsys.readouterr()
            assert words in said.err, (command, said.err)
            assert said.out == ""
        for command, value in (
            (["inspect"], {"chunks": []}),
            (["search", "parrot"], {"found": []}),
            (["stats"], {"namespaces": []}),
            (["compact"], {"namespaces": []}),
            (["forget", "--session", "nobody"], {"turns": [], "dry_run": True}),
            (["import", str(tmp_path / "empty")], {"new": 0, "known": 0}),
        ):
            assert main(["mem", *command, "--json"]) == 0, command
            answer = json.loads(capsys.readouterr().out)
            assert value.items() <= answer.items()
        for name in ("t99", "c99", "r99"):
            assert main(["mem", "history", name]) == 1
            assert "there is none" in capsys.readouterr().err


def test_a_namespace_that_does_not_exist_is_named_with_those_that_do(
    shown: Shown, capsys: pytest.CaptureFixture[str]
) -> None:
    shown("mem", "add", "The parrot eats mangoes.", "--namespace", "project:zoo")
    found = shown("mem", "search", "parrot", "--namespace", "project:zo")
    assert (found["found"], found["unknown_namespaces"]) == ([], ["project:zo"])
    assert "project:zoo" in found["known_namespaces"]
    assert main(["mem", "search", "parrot", "--namespace", "project:zo"]) == 0
    told = capsys.readouterr().err
    assert "memory has no project:zo; it has " in told
    assert "project:zoo (1 turns)" in told
    for command in ("inspect", "export"):
        assert main(["mem", command, "--namespace", "project:zo"]) == 1
        told = capsys.readouterr().err
        assert "'project:zo': nothing was ever kept there; there is " in told
        assert "project:zoo" in told
    assert main(["mem", "search", "parrot", "--namespace", "zoo"]) == 2


def test_broken_lines_are_said_and_the_others_remembered(
    shown: Shown, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    good = [json.dumps({"role": "user", "content": f"The {name} heron came at dawn."}) for name in ("grey", "white")]
    file = tmp_path / "log.jsonl"
    file.write_text("\n".join([good[0], '{"role": "user", "content": "cut o', "}{", good[1], "[1, 2", '"bare"']) + "\n")
    assert main(["import", str(file), "--memory", "--namespace", "project:broken"]) == 0
    said = capsys.readouterr().err
    assert "memory: 2 new turns" in said
    assert "warning" in said
    held = {turn["text"] for turn in shown("mem", "search", "heron", "--namespace", "project:broken")["found"]}
    assert held == {"The grey heron came at dawn.", "The white heron came at dawn."}


def test_ten_megabytes_in_one_message_go_in_whole_and_are_found_at_their_end(
    shown: Shown, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    chance = random.Random(5)
    vocabulary = ["".join(chance.choices("abcdefghijklmnop", k=100)) for _ in range(40)]
    text = " ".join(chance.choices(vocabulary, k=100_000)) + " and the heron sleeps in box 77"
    file = tmp_path / "stdin"
    file.write_text(text)
    with file.open(encoding="utf-8") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        added = shown("mem", "add", "-", "--source", "huge", "--namespace", "project:huge")
    assert added["new"] == len(added["turns"]) > 2000
    best = shown("mem", "search", "where does the heron sleep?", "-n", "1", "--namespace", "project:huge")["found"][0]
    assert best["text"].endswith("box 77")
    gone = shown("mem", "forget", "--session", "huge", "--yes")
    assert "".join(turn["text"] for turn in sorted(gone["turns"], key=lambda turn: int(turn["id"][1:]))) == text


def test_clocks_that_run_backwards_and_none_at_all_are_kept_as_they_are(shown: Shown) -> None:
    for number, at in enumerate(("2031-01-01", "1969-07-20", "2025-05-05")):
        shown("mem", "add", f"Wagon {number} brought figs.", "--at", at, "--namespace", "project:wagons")
    found = shown("mem", "search", "which wagon brought figs?", "--namespace", "project:wagons")["found"]
    assert {turn["text"][:7] for turn in found} == {"Wagon 0", "Wagon 1", "Wagon 2"}
    assert min(turn["event_at_s"] for turn in found) < 0


@pytest.mark.parametrize(
    ("text", "question"),
    [("我们的鹦鹉只吃芒果。", "鹦鹉吃什么？"), ("الببغاء يأكل المانجو فقط", "ماذا يأكل الببغاء؟"), ("🦜 ❤️ 🥭", "🦜?")],
)
def test_other_scripts_are_found_by_their_words(shown: Shown, text: str, question: str) -> None:
    shown("mem", "add", "Something else was said.", "--namespace", "project:scripts")
    shown("mem", "add", text, "--namespace", "project:scripts")
    assert shown("mem", "search", question, "-n", "1", "--namespace", "project:scripts")["found"][0]["text"] == text


def test_what_is_referred_to_can_be_forgotten_and_the_statement_before_it_stands_again(shown: Shown) -> None:
    space = ("--namespace", "project:homes")
    shown("mem", "add", "I live in Lyon.", "--at", "2024-01-01", *space)
    (newer,) = shown("mem", "add", "I moved, I live in Oslo now.", "--at", "2025-01-01", *space)["turns"]
    planned = shown("mem", "forget", newer)
    assert planned["dry_run"]
    done = shown("mem", "forget", newer, "--yes")
    assert done["records"] == planned["records"]
    assert shown("mem", "search", "where do I live?", *space)["found"][0]["text"] == "I live in Lyon."
    assert main(["mem", "history", newer]) == 1


def test_two_writers_at_once_lose_nothing_and_what_both_say_is_stored_once(running: Path, shown: Shown) -> None:
    paths = find_paths({"AKASHIC_HOME": str(running)})

    def write(name: str) -> int:
        new = 0
        with on_socket(paths) as client:
            for start in range(0, 200, 20):
                texts = [f"{who} saw {n} storks" for n in range(start, start + 20) for who in (name, "both")]
                body = {"turns": [{"text": text} for text in texts], "source": name, "namespace": "project:storks"}
                new += client.post(TURNS, json=body).raise_for_status().json()["new"]
        return new

    with ThreadPoolExecutor(2) as pool:
        assert sum(pool.map(write, ("left", "right"))) == 600
    (space,) = [s for s in shown("mem", "stats")["namespaces"] if s["namespace"] == "project:storks"]
    assert space["turns"] == 600
    told = shown("mem", "search", "both saw 199 storks", "--namespace", "project:storks")["found"]
    (found,) = [turn for turn in told if turn["text"] == "both saw 199 storks"]
    assert {origin["source"] for origin in found["origins"]} == {"left", "right"}
