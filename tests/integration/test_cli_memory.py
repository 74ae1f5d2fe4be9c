"""`akashic mem`, `chat --memory` and `import --memory` against a daemon process on the fake engine."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from akashic_cli.__main__ import main
from akashic_cli.quantities import parse_moment
from fake_daemon import daemon
from fake_service import register

FACTS = (
    "The parrot eats mangoes and nothing else.",
    "Rent is due on Monday, as always.",
    "My bicycle has a flat tyre at the rear wheel.",
)
NEVER_SAID = "zanzibarquartz"


@pytest.fixture
def running(home: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Path]:
    register(home, ["fake"])
    with daemon(home, "--window", "4096", "--set", "cache.ssd_bytes=0"):
        for number, fact in enumerate(FACTS):
            assert main(["mem", "add", fact, "--source", f"day {number}", "--at", f"2025-0{number + 1}-10"]) == 0
        capsys.readouterr()
        yield home


def shown(capsys: pytest.CaptureFixture[str], *command: str) -> Any:
    assert main([*command, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str], None]]:
    with ExitStack() as opened:

        def put(text: str) -> None:
            file = tmp_path / "stdin"
            file.write_text(text)
            monkeypatch.setattr(sys, "stdin", opened.enter_context(file.open(encoding="utf-8")))

        yield put


def files_with(home: Path, text: str) -> list[str]:
    """Return the files below the home that hold a text, whatever their kind."""
    return [
        path.name
        for path in home.rglob("*")
        if path.is_file() and text.casefold().encode() in path.read_bytes().lower()
    ]


def test_what_was_added_is_found_with_its_score_explained(running: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mem", "search", "what does the parrot eat?", "--explain", "-n", "1"]) == 0
    out = capsys.readouterr().out
    assert "t1 " in out
    assert "day 0  user" in out
    assert FACTS[0] in out
    assert "because: " in out
    assert "words_around +" in out
    (best, *_) = shown(capsys, "mem", "search", "which tyre is flat?")["found"]
    assert best["text"] == FACTS[2]
    assert sum(best["parts"].values()) == pytest.approx(best["score"], abs=1e-3)
    assert best["event_at_s"] == parse_moment("2025-03-10")


def test_ranking_by_a_model_needs_one(running: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mem", "search", "parrot", "--rerank"]) != 0
    assert "memory.compactor" in capsys.readouterr().err


def test_a_chunk_is_a_card_and_lists_can_be_narrowed(running: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (chunk,) = shown(capsys, "mem", "inspect")["chunks"]
    assert (chunk["state"], chunk["namespace"]) == ("open", "user")
    assert shown(capsys, "mem", "inspect", "--state", "reconciled")["chunks"] == []
    assert shown(capsys, "mem", "inspect", "day 1")["chunks"] == [chunk]
    assert shown(capsys, "mem", "inspect", "day 9")["chunks"] == []
    for asked, told in (
        (["day 9"], "memory holds nothing of day 9"),
        (["--state", "reconciled"], "memory holds nothing like that"),
    ):
        assert main(["mem", "inspect", *asked]) == 0
        assert told in capsys.readouterr().err
    assert main(["mem", "inspect", chunk["id"]]) == 0
    card = capsys.readouterr().out
    for words in (
        "namespace:  user",
        "rho:",
        "sources:    day 0, day 1, day 2",
        "links:",
        "neighbours:",
        "kv:",
        FACTS[1],
    ):
        assert words in card
    assert main(["mem", "inspect", "--map"]) == 0
    assert "1 chunks" in capsys.readouterr().out
    assert main(["mem", "history", "t1"]) == 0
    assert "said in day 0 (2025-01-10 00:00)" in capsys.readouterr().out
    assert shown(capsys, "mem", "stats")["namespaces"][0]["turns"] == 3


def test_forgetting_is_a_dry_run_first_and_then_leaves_no_file_with_the_text(
    running: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = f"The word for the safe is {NEVER_SAID} in the morning."
    assert main(["mem", "add", secret]) == 0
    (turn,) = capsys.readouterr().out.split()
    assert files_with(running, NEVER_SAID)
    assert main(["mem", "forget", "--query", f"safe {NEVER_SAID}", "-n", "1"]) == 0
    told = capsys.readouterr()
    assert secret in told.out
    assert "would go: 1 turns" in told.err
    assert "--yes does it" in told.err
    assert files_with(running, NEVER_SAID)
    gone = shown(capsys, "mem", "forget", turn, "--yes")
    assert [one["id"] for one in gone["turns"]] == [turn]
    assert not gone["dry_run"]
    assert files_with(running, NEVER_SAID) == []
    assert files_with(running, "mangoes")
    assert main(["mem", "history", turn]) == 1
    assert f"looking for turn {turn}" in capsys.readouterr().err


def test_forgetting_by_time_and_session_takes_what_both_mean(running: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = shown(capsys, "mem", "forget", "--after", "2025-01-20", "--before", "2025-03-01")
    assert [one["text"] for one in both["turns"]] == [FACTS[1]]
    assert shown(capsys, "mem", "forget", "--session", "day 0", "--after", "2025-01-20")["turns"] == []
    assert main(["mem", "forget"]) == 2
    assert "nothing says what" in capsys.readouterr().err
    assert main(["mem", "forget", "x9"]) == 2
    assert "write t12 for a turn" in capsys.readouterr().err


def test_what_is_exported_can_be_taken_in_again(
    running: Path, capsys: pytest.CaptureFixture[str], pipe: Callable[[str], None], tmp_path: Path
) -> None:
    file = tmp_path / "memory.jsonl"
    assert main(["mem", "export", "-o", str(file)]) == 0
    assert len(file.read_text().splitlines()) == 3
    assert shown(capsys, "mem", "import", str(file)) == {"new": 0, "known": 3}
    assert shown(capsys, "mem", "forget", "--namespace", "user", "--yes")["chunks_removed"]
    assert shown(capsys, "mem", "import", str(file)) == {"new": 3, "known": 0}
    (origin,) = shown(capsys, "mem", "search", "parrot")["found"][0]["origins"]
    assert origin["source"] == "day 0"
    pipe("{broken\n")
    assert main(["mem", "import", "-"]) == 2
    assert "importing memory, line 1" in capsys.readouterr().err


def test_a_chat_recalls_and_names_its_sources_and_says_at_its_start_that_it_does(
    running: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["chat", "What does the parrot eat?", "--max-tokens", "4"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("memory is on (user)")
    assert any(line.startswith("memory: recalled ") and "day 0" in line for line in said)
    assert main(["chat", "What does the parrot eat?", "--no-memory", "--max-tokens", "4"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "memory is off for this session"
    assert not any("recalled" in line for line in said)
    assert main(["chat", "hi", "--no-memory", "--namespace", "project:x"]) == 2
    assert "contradict" in capsys.readouterr().err
    assert main(["chat", "hi", "--namespace", "nowhere"]) != 0


def test_a_transcript_many_times_the_window_is_answered_with_recall_from_it(
    running: Path, capsys: pytest.CaptureFixture[str], pipe: Callable[[str], None]
) -> None:
    lines = [{"role": "user", "content": "The key of the boathouse hangs behind the blue barometer."}]
    for number in range(400):
        lines.append({"role": "assistant", "content": f"Point {number} of the agenda was settled without a vote."})
        lines.append({"role": "user", "content": f"Then point {number + 1} of the agenda, please, and shortly."})
    pipe("".join(json.dumps(line) + "\n" for line in lines))
    done = shown(capsys, "chat", "Where does the key of the boathouse hang?", "--max-tokens", "8", "-s", "minutes")
    told = done["reuse"]["memory"]
    assert done["reuse"]["left_out_messages"] > 500
    assert told["remembered"] > 500
    assert {turn["source"] for turn in told["turns"]} == {"minutes"}
    messages = shown(capsys, "session", "show", "minutes")["messages"]
    assert "blue barometer" in messages[-4]["message"]["content"]


def test_a_session_that_is_removed_says_what_memory_holds_of_it(
    running: Path, capsys: pytest.CaptureFixture[str], pipe: Callable[[str], None]
) -> None:
    pipe(json.dumps({"role": "user", "content": f"The word for the safe is {NEVER_SAID}."}) + "\n")
    assert main(["import", "-", "--memory", "--name", "safe"]) == 0
    capsys.readouterr()
    told = shown(capsys, "mem", "forget", "--session", "safe")
    assert told["sessions"] == ["safe"]
    assert main(["session", "rm", "safe"]) == 0
    assert "memory holds 1 turns of it: `akashic mem forget --session safe --yes`" in capsys.readouterr().err
    assert main(["mem", "forget", "--session", "safe", "--yes"]) == 0
    assert files_with(running, NEVER_SAID) == []


def test_an_import_with_memory_needs_no_chat(
    running: Path, capsys: pytest.CaptureFixture[str], pipe: Callable[[str], None]
) -> None:
    lines = [{"role": "user", "content": "We meet at the lighthouse."}, {"role": "assistant", "content": "Noted."}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    pipe(text)
    done = shown(capsys, "import", "-", "--memory", "--namespace", "project:trip")
    assert done["memory"] == [{"namespace": "project:trip", "new": 2, "known": 0}]
    pipe(text)
    assert main(["import", "-", "--memory", "--namespace", "project:trip"]) == 0
    assert "memory: 0 new turns" in capsys.readouterr().err
    (first, *_) = shown(capsys, "mem", "search", "lighthouse", "--namespace", "project:trip")["found"]
    assert first["text"] == "We meet at the lighthouse."
    pipe(text)
    assert main(["import", "-", "--namespace", "project:trip"]) == 2
    assert "add --memory" in capsys.readouterr().err
