"""`akashic ctx`, `explain` and `cache tree` against a daemon process on the fake engine."""

from __future__ import annotations

import io
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from akashic_cli.__main__ import main
from akashic_daemon.paths import find_paths
from fake_daemon import daemon, on_socket
from fake_service import register

HISTORY = (
    ("system", "be brief"),
    ("user", "list the files"),
    ("tool", "a.txt b.txt c.txt"),
    ("assistant", "three files"),
    ("tool", "d.txt"),
    ("user", "which is newest?"),
)


@pytest.fixture(scope="module")
def served() -> Iterator[Path]:
    # A socket's path is short.
    with tempfile.TemporaryDirectory(prefix="akc") as name:
        register(Path(name), ["fake"])
        with daemon(Path(name)):
            yield Path(name)


@pytest.fixture
def running(served: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """The home of a daemon that has a session `run` as each test begins, and no other."""
    monkeypatch.setenv("AKASHIC_HOME", str(served))
    for session in shown(capsys, "session", "list")["sessions"]:
        assert main(["session", "rm", session["session"]]) == 0
    for role, text in HISTORY:
        assert main(["ctx", "append", "run", role, text, "--no-autostart"]) == 0
    capsys.readouterr()
    return served


def shown(capsys: pytest.CaptureFixture[str], *command: str) -> Any:
    assert main([*command, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_context_is_shown_and_edited_from_the_shell(running: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = shown(capsys, "ctx", "show", "run")
    assert [(m["role"], m["label"]) for m in before["messages"]] == list(HISTORY)
    gone = before["messages"][2]["tokens"]
    assert main(["ctx", "drop", "run", "tool[0]"]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert f"drop message 2: {gone} tokens\n" in said.err
    assert main(["ctx", "replace", "run", "message 4", "gone"]) == 0
    assert "replace message 4" in capsys.readouterr().err
    assert shown(capsys, "ctx", "repos", "run")["added"][0]["text"] == "repos"
    assert main(["ctx", "drop", "run", "tool[:-9]"]) == 0
    assert "nothing to do" in capsys.readouterr().err
    assert main(["ctx", "show", "run"]) == 0
    out = capsys.readouterr().out
    assert "2\ttool\t25\t\tdropped\t\ta.txt b.txt c.txt\n" in out
    assert "4\ttool\t13\t12\treplaced\t" in out
    assert f"before message 6: drop message 2: {gone} tokens gone\n" in out
    assert main(["ctx", "policy", "run", "tool-rolling-drop:keep=1"]) == 0
    assert shown(capsys, "ctx", "show", "run")["own_policy"] is True
    assert main(["ctx", "policy", "run", "default"]) == 0
    assert shown(capsys, "ctx", "show", "run")["own_policy"] is False


def test_what_is_wrong_is_said_with_its_exit_code_and_changes_nothing(
    running: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = shown(capsys, "ctx", "show", "run")
    script = tmp_path / "s.ops"
    script.write_text("drop tool[0]\nassert tool_results == 5\n")
    wrong = [
        (["ctx", "drop", "run", "messages 3..40"], 2, "messages 3..40): message 40 doesn't exist"),
        (["ctx", "drop", "run", "message 0"], 2, "message 0 is a system message, and protected"),
        (["ctx", "drop", "run", "tol[0]"], 2, "did you mean 'tool'?"),
        (["ctx", "drop", "ru", "tool[0]"], 1, "did you mean 'run'?"),
        (["ctx", "append", "run", "usr", "x"], 2, "did you mean 'user'?"),
        (["ctx", "policy", "run", "windw"], 2, "did you mean 'window'?"),
        (["ctx", "run", "run", str(script)], 1, "line 2 (assert tool_results == 5): tool_results is 1, expected == 5"),
        (["ctx", "run", "run", str(script), "--dry-run"], 1, "tool_results is 1, expected == 5"),
        (["ctx", "run", "run", "none.ops"], 2, "none.ops: No such file"),
        (["explain", "run"], 1, "no explained turn"),
        (["cache", "tree", "--depth", "0"], 2, "--depth"),
    ]
    for command, code, words in wrong:
        assert (main(command), words in capsys.readouterr().err) == (code, True), command
    script.write_text('append user file "none.txt"\n')
    assert main(["ctx", "run", "run", str(script)]) == 2
    assert "what line 1 names from none.txt: No such file" in capsys.readouterr().err
    script.write_text("drp tool\n")
    assert main(["ctx", "run", "run", str(script)]) == 2
    assert "line 1, column 1" in capsys.readouterr().err
    assert shown(capsys, "ctx", "show", "run") == before
    assert [s["session"] for s in shown(capsys, "session", "list")["sessions"]] == ["run"]


SCRIPT = 'append user file "q.txt"\ngenerate 8 tokens\ndrop tool[:-1]\nrepos\nassert tool_results == 1\nshow\ngenerate 5 tokens\n'


def test_a_script_is_planned_then_run_and_its_turns_explained(
    running: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "q.txt").write_text("and the oldest?")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(SCRIPT.encode())))
    before = shown(capsys, "ctx", "show", "run")
    assert main(["ctx", "run", "run", "-", "--dry-run"]) == 0
    said = capsys.readouterr()
    assert [line.split("\t")[:2] for line in said.out.splitlines()[1:]] == [
        [str(number), line] for number, line in enumerate(SCRIPT.splitlines(), start=1)
    ]
    assert "tokens that editing the texts instead would compute again" in said.err
    assert shown(capsys, "ctx", "show", "run") == before

    (tmp_path / "s.ops").write_text(SCRIPT)
    assert main(["ctx", "run", "run", "s.ops"]) == 0
    said = capsys.readouterr()
    assert "2\ttool\t25\t\tdropped" in said.out
    assert "7: generate 5 tokens · reused " in said.err
    assert shown(capsys, "ctx", "show", "run")["messages"][6]["label"] == "and the oldest?"

    assert main(["explain", "run", "--turn", "1"]) == 0
    assert "turn 1 of session run on fake" in capsys.readouterr().out
    newest = shown(capsys, "explain", "run")
    assert newest["turn"] == 2
    assert newest["reused_tokens"] > 0
    assert main(["cache", "tree"]) == 0
    assert "run " in capsys.readouterr().out
    assert shown(capsys, "cache", "tree", "--depth", "1")["cells_used"] > 0


def test_a_script_with_json_is_ndjson_to_its_end(
    running: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "s.ops"
    script.write_text("generate 4 tokens\nbranch other\nshow\n")
    assert main(["ctx", "run", "run", str(script), "--json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [e["line"] for e in events if e["kind"] == "step"] == [1, 2, 3]
    assert (events[-1]["kind"], events[-1]["session"]) == ("done", "other")


def test_a_chats_policy_becomes_its_sessions_own(running: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = "tool-rolling-drop:keep=1"
    assert main(["chat", "hi", "-s", "talk", "--policy", policy, "--max-tokens", "4"]) == 0
    assert main(["chat", "and?", "-s", "talk", "--policy", policy, "--max-tokens", "4"]) == 0
    capsys.readouterr()
    drawn = shown(capsys, "ctx", "show", "talk")
    assert (drawn["policy"][: len(policy)], drawn["own_policy"], drawn["policy_since"]) == (policy, True, 0)
    assert main(["chat", "hi", "-s", "new", "--policy", "windw"]) == 2
    assert "did you mean 'window'?" in capsys.readouterr().err
    assert main(["session", "show", "new"]) == 1


def test_routes_refuse_bodies_and_numbers_that_mean_nothing(running: Path) -> None:
    with on_socket(find_paths()) as client:
        for method, path, body, words in (
            ("POST", "/sessions/run/ops", {"ops": 3}, "ops"),
            ("POST", "/sessions/run/ops", {"ops": [{"op": "drop"}]}, "cache_ops[0] (drop): names nothing"),
            ("POST", "/sessions/run/messages", {"role": "robot", "content": "x"}, "role"),
            ("PUT", "/sessions/run/policy", {}, "policy"),
            ("POST", "/sessions/run/script", {"script": "drp"}, "line 1, column 1"),
            ("GET", "/sessions/run/explain?turn=x", None, "turn is 'x'"),
            ("GET", "/cache/tree?depth=1000", None, "1000 nodes deep"),
        ):
            response = client.request(method, f"/akashic/v1{path}", json=body)
            assert response.status_code == 400, path
            assert words in response.json()["error"]["message"]
        names = [p["name"] for p in client.get("/akashic/v1/policies").json()["policies"]]
        assert "tool-rolling-drop" in names
