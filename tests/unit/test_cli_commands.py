"""The commands against a stand-in daemon."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from akashic_cli.__main__ import main
from akashic_daemon.errors import PromptTooLong
from akashic_daemon.paths import find_paths
from akashic_daemon.protocol import native
from cli_daemon import ANSWER, FakeDaemon

TEXT = "".join(ANSWER)
pytestmark = pytest.mark.usefixtures("no_input")


@pytest.fixture
def pipe_in(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], None]]:
    with ExitStack() as opened:

        def pipe(data: bytes) -> None:
            read, write = os.pipe()
            os.write(write, data)
            os.close(write)
            stdin = opened.enter_context(io.TextIOWrapper(os.fdopen(read, "rb")))
            monkeypatch.setattr(sys, "stdin", stdin)

        yield pipe


def paths_asked(daemon: FakeDaemon) -> list[str]:
    return [f"{method} {path}" for method, path, _ in daemon.requests if not path.endswith("/status")]


def test_a_question_puts_the_plain_answer_on_stdout_and_its_cost_on_stderr(
    daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chat", "hi", "-s", "mine", "--max-tokens", "5"]) == 0
    said = capsys.readouterr()
    assert said.out == TEXT + "\n"
    assert "reused 90 · computed 10 of 100 prompt tokens · first token 250 ms · 20.0 tok/s" in said.err
    method, path, body = daemon.requests[-1]
    assert (method, path) == ("POST", "/akashic/v1/sessions/mine/turn")
    assert body == {"prompt": "hi", "max_tokens": 5, "stop": []}


def test_left_out_messages_and_notes_are_told_on_stderr(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    daemon.reuse = native.Reuse(left_out_messages=4, left_out_tokens=1234, notes=["tools reordered"])
    assert main(["chat", "hi"]) == 0
    err = capsys.readouterr().err
    assert "4 messages (1,234 tokens) were left out" in err
    assert "note: tools reordered" in err


def test_a_question_with_json_prints_one_document(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "hi", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["text"] == TEXT
    assert document["reuse"]["reused_tokens"] == 90
    assert document["session"].startswith("chat-")


def test_a_piped_transcript_is_imported_whole_and_the_question_asked_in_its_session(
    daemon: FakeDaemon, pipe_in: Callable[[bytes], None], capsys: pytest.CaptureFixture[str]
) -> None:
    sent = b'{"role": "user"}\n' * 1000
    pipe_in(sent)
    assert main(["chat", "what next?"]) == 0
    assert paths_asked(daemon) == ["POST /akashic/v1/import", "POST /akashic/v1/sessions/imported/turn"]
    assert daemon.requests[-2][2] == sent
    said = capsys.readouterr()
    assert said.out == TEXT + "\n"
    assert "no JSON: 3×, first in line 17" in said.err


def test_of_several_conversations_the_main_one_is_asked_and_that_is_said(
    daemon: FakeDaemon, pipe_in: Callable[[bytes], None], capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.conversations = 3
    pipe_in(b"some text")
    assert main(["chat", "what next?", "-s", "mine"]) == 0
    assert paths_asked(daemon)[-1] == "POST /akashic/v1/sessions/mine/turn"
    assert "3 conversations; going on with the main one, mine" in capsys.readouterr().err


def test_piped_plain_text_without_a_question_is_the_question(
    daemon: FakeDaemon, pipe_in: Callable[[bytes], None]
) -> None:
    pipe_in(b"why is the sky blue?\n")
    assert main(["chat"]) == 0
    assert daemon.requests[-1][2]["prompt"] == "why is the sky blue?"


def test_a_piped_transcript_without_a_question_is_refused_before_anything_is_sent(
    daemon: FakeDaemon, pipe_in: Callable[[bytes], None], capsys: pytest.CaptureFixture[str]
) -> None:
    pipe_in(b'{"messages": []}')
    assert main(["chat"]) == 2
    assert daemon.requests == []
    assert "no question" in capsys.readouterr().err


def test_empty_stdin_is_said_and_not_taken_for_a_transcript(
    daemon: FakeDaemon, pipe_in: Callable[[bytes], None], capsys: pytest.CaptureFixture[str]
) -> None:
    pipe_in(b"")
    assert main(["chat", "hi"]) == 0
    assert "stdin is empty" in capsys.readouterr().err
    assert len(paths_asked(daemon)) == 1


def test_an_error_in_the_stream_ends_with_its_own_exit_code_and_hint(
    daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.turn_error = PromptTooLong("the prompt has 9 tokens, the window 8", hint="shorten it").to_wire()
    assert main(["chat", "hi"]) == 2
    assert capsys.readouterr().err.endswith("error: the prompt has 9 tokens, the window 8\nhint: shorten it\n")


def test_an_unhealthy_daemon_is_not_waited_for(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    daemon.healthy = False
    assert main(["chat", "hi"]) == 4
    assert "the step loop stands still" in capsys.readouterr().err
    assert main(["daemon", "status"]) == 4


def test_a_daemon_of_another_protocol_is_refused_with_what_to_do(
    daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.protocol_version = 99
    assert main(["session", "list"]) == 1
    assert "akashic daemon restart" in capsys.readouterr().err


def test_without_a_daemon_and_autostart_the_exit_code_is_3(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["session", "list", "--no-autostart"]) == 3
    assert main(["daemon", "status"]) == 3
    assert "hint: `akashic daemon start`" in capsys.readouterr().err


def test_import_lists_sessions_and_tells_problems(
    daemon: FakeDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "log.jsonl"
    file.write_bytes(b"x" * 600_000)
    assert main(["import", str(file), "--format", "codex", "--name", "n"]) == 0
    said = capsys.readouterr()
    assert "n\tmain\t2\t2\tn\n" in said.out
    assert "warning: no JSON" in said.err
    assert daemon.requests[-1][2] == file.read_bytes()
    assert daemon.import_query == {"format": "codex", "name": "n", "file": str(file)}


def test_a_file_whose_name_is_no_text_is_imported(daemon: FakeDaemon, tmp_path: Path) -> None:
    file = os.fsencode(tmp_path) + b"/log\xff.jsonl"
    Path(os.fsdecode(file)).write_bytes(b"x")
    assert main(["import", os.fsdecode(file)]) == 0
    assert daemon.import_query["file"].endswith("log?.jsonl")


@pytest.mark.parametrize("name", [".", "..", ""])
@pytest.mark.parametrize("command", ["show", "export", "fork", "rm"])
def test_a_name_that_a_path_takes_for_another_place_is_refused(
    daemon: FakeDaemon, capsys: pytest.CaptureFixture[str], command: str, name: str
) -> None:
    assert main(["session", command, name]) == 2
    assert repr(name) in capsys.readouterr().err
    assert all("/sessions" not in path for path in paths_asked(daemon))


def test_import_of_a_missing_file_starts_no_daemon(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "nowhere.jsonl"]) == 2
    assert "nowhere.jsonl" in capsys.readouterr().err
    assert not find_paths().daemon_log.exists()


def test_piped_tables_are_tab_separated_and_free_of_control_characters(
    daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["session", "list"]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.split("\t")[0] == "SESSION"
    assert len(row.split("\t")) == len(header.split("\t"))
    assert "\x1b" not in row


def test_session_commands_print_data_on_stdout(
    daemon: FakeDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["session", "show", "one"]) == 0
    assert "\x1b" not in capsys.readouterr().out
    assert main(["session", "fork", "one", "--at", "2", "--name", "two"]) == 0
    assert capsys.readouterr().out == "two\n"
    assert daemon.requests[-1][2] == {"name": "two", "at_message": 2}
    assert main(["session", "export", "a/b"]) == 0
    assert [json.loads(line)["content"] for line in capsys.readouterr().out.splitlines()] == ["a/b é 0", "a/b é 1"]
    assert main(["session", "export", "one", "-o", str(tmp_path / "out.ndjson")]) == 0
    assert len((tmp_path / "out.ndjson").read_text().splitlines()) == 2
    assert main(["session", "rm", "one", "two"]) == 0
    assert "removed two: 3 messages deleted; 1 stay" in capsys.readouterr().err


def test_an_error_of_the_daemon_keeps_message_hint_and_exit_code(
    daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["session", "show", "missing"]) == 1
    assert capsys.readouterr().err == "error: reading session 'missing'\nhint: `akashic session list`\n"


def test_model_commands_show_capabilities_with_reasons(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "list"]) == 0
    assert "tiny\t2.0 KiB\tdefault, loaded\t/m/tiny.gguf" in capsys.readouterr().out
    assert main(["model", "show", "tiny"]) == 0
    shown = capsys.readouterr().out.split("\n")
    assert any(line.split() == ["can", "repos:", "no:", "the", "rope", "is", "unknown"] for line in shown)
    assert main(["model", "add", "x.gguf", "--default"]) == 0
    body = daemon.requests[-1][2]
    assert Path(body["path"]).is_absolute()
    assert body["default"] is True
    assert main(["model", "rm", "tiny", "--json"]) == 0


def test_piped_stats_with_json_are_ndjson_and_one_document_with_once(
    daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stats", "--json"]) == 0
    assert [json.loads(line)["requests_total"] for line in capsys.readouterr().out.splitlines()] == [1, 2, 3]
    assert main(["stats", "--json", "--once"]) == 0
    assert json.loads(capsys.readouterr().out)["requests_total"] == 7
    assert main(["stats"]) == 0
    assert "requests:" in capsys.readouterr().out


def test_leaving_a_stream_closes_it_at_the_daemon(daemon: FakeDaemon) -> None:
    from akashic_cli.chat.turn import Answer, run_turn
    from akashic_cli.client import Client

    daemon.hang_after_text = True

    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    with Client(find_paths().socket) as client:
        with pytest.raises(KeyboardInterrupt):
            run_turn(client, native.TurnRequest(prompt="x"), Answer("s"), interrupt)
        assert daemon.stream_closed.wait(10)


def test_a_conversation_survives_a_stopped_and_a_refused_answer(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from akashic_cli.chat import interactive
    from akashic_cli.client import Client

    with Client(find_paths().socket) as client:
        talk = interactive.Conversation(client, native.TurnRequest(prompt=""), "one")
        assert talk.handle("hello")
        daemon.turn_error = PromptTooLong("too long").to_wire()
        assert talk.handle("hello again")
        assert talk.handle("/session two")
        daemon.turn_error = None
        with monkeypatch.context() as patch:
            patch.setattr(interactive, "run_turn", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            assert talk.handle("stop me")
        assert talk.handle("/tmp is full")
        assert talk.handle("third")
        assert not talk.handle("/quit")
    said = capsys.readouterr()
    assert said.out == (TEXT + "\n") * 2
    assert "error: too long" in said.err
    assert "stopped; the session keeps what was said" in said.err
    assert "unknown command /tmp" in said.err
    turns = [path for _, path, _ in daemon.requests if path.endswith("/turn")]
    assert turns == [f"/akashic/v1/sessions/{name}/turn" for name in ("one", "one", "two")]


def test_a_reader_that_leaves_early_is_no_error(daemon: FakeDaemon, home: Path) -> None:
    command = [sys.executable, "-m", "akashic_cli", "session", "list"]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_whole_store_is_verified_with_exit_code_0(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "verify"]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert "is whole: 3 sessions" in said.err


def test_findings_in_the_store_are_data_and_the_exit_code_is_1(
    daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.store_findings = [native.StoreFinding(kind="wrong_digest", subject="message 7", detail="it differs")]
    assert main(["cache", "verify"]) == 1
    said = capsys.readouterr()
    assert said.out == "STORE\tKIND\tSUBJECT\tDETAIL\tMENDED\nsessions\twrong_digest\tmessage 7\tit differs\tno\n"
    assert "left as it is" in said.err
    assert main(["cache", "verify", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found == {
        "sessions": 3,
        "findings": [native.StoreFinding(kind="wrong_digest", subject="message 7", detail="it differs").model_dump()],
    }


def test_a_model_path_that_is_no_text_is_refused_before_anything_is_sent(
    daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["model", "add", os.fsdecode(b"/models/m\xff.gguf")]) == 2
    assert "not UTF-8" in capsys.readouterr().err
    assert daemon.requests == []


@pytest.mark.parametrize("loaded", [True, False])
def test_showing_a_model_says_whether_it_is_loaded_and_its_abilities_only_then(
    daemon: FakeDaemon, capsys: pytest.CaptureFixture[str], loaded: bool
) -> None:
    daemon.model_loaded = loaded
    assert main(["model", "show", "tiny"]) == 0
    said = capsys.readouterr().out
    assert ("not loaded" in said) != loaded
    assert ("can drop" in said) == loaded


def test_a_dash_reads_the_question_from_stdin(daemon: FakeDaemon, pipe_in: Callable[[bytes], None]) -> None:
    pipe_in(b"what is this?\n")
    assert main(["chat", "-"]) == 0
    assert daemon.requests[-1][2]["prompt"] == "what is this?"


def test_a_binary_question_is_refused_with_the_byte(
    daemon: FakeDaemon, pipe_in: Callable[[bytes], None], capsys: pytest.CaptureFixture[str]
) -> None:
    pipe_in(b"what\xff\x00")
    assert main(["chat", "-"]) == 2
    assert "no UTF-8 at byte 4" in capsys.readouterr().err
