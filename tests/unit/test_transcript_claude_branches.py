"""Claude Code logs with rewinds, parallel calls, compaction and attachments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from akashic_daemon.errors import TranscriptError
from akashic_daemon.trajectory.message import Role
from akashic_daemon.transcript import Imported, Problem, read_transcript
from akashic_daemon.transcript.claude_code import LEFT_BEHIND

Line = dict[str, Any]


def line(uuid: str, parent: str | None, kind: str, content: Any, answer: str | None = None, **more: Any) -> Line:
    message = {"role": kind, "content": content, **({"id": answer} if answer else {})}
    return {"type": kind, "uuid": uuid, "parentUuid": parent, "sessionId": "s", "message": message, **more}


def call(name: str) -> list[Line]:
    return [{"type": "tool_use", "id": name, "name": "Bash", "input": {}}]


def result(name: str) -> list[Line]:
    return [{"type": "tool_result", "tool_use_id": name, "content": f"result {name}"}]


def attachment(uuid: str, parent: str | None, **fields: Any) -> Line:
    return {"type": "attachment", "uuid": uuid, "parentUuid": parent, "sessionId": "s", "attachment": fields}


def texts(tmp_path: Path, lines: list[Line]) -> tuple[list[str], list[Problem]]:
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    items = list(read_transcript(path, format="claude-code"))
    said = []
    for item in items:
        if isinstance(item, Imported):
            calls = "+".join(c.id for c in item.message.tool_calls)
            said.append(item.message.content or calls)
    return said, [item for item in items if isinstance(item, Problem)]


def test_of_a_rewound_log_the_branch_of_the_last_message_is_read_and_the_rest_counted(tmp_path: Path) -> None:
    said, problems = texts(
        tmp_path,
        [
            line("1", None, "user", "start"),
            line("2", "1", "assistant", "answer", "m1"),
            line("3", "2", "user", "wrong way"),
            line("4", "3", "assistant", [{"type": "thinking", "thinking": "hm"}], "m2"),
            line("5", "4", "assistant", call("a"), "m2"),
            line("6", "5", "user", result("a")),
            line("7", "2", "user", "right way"),
            line("8", "7", "assistant", "good", "m3"),
        ],
    )
    assert said == ["start", "answer", "right way", "good"]
    assert problems == [Problem(LEFT_BEHIND, 3), Problem(LEFT_BEHIND, 4), Problem(LEFT_BEHIND, 6)]


def test_the_last_message_decides_also_when_it_goes_on_with_the_older_branch(tmp_path: Path) -> None:
    said, problems = texts(
        tmp_path,
        [
            line("1", None, "user", "start"),
            line("2", "1", "assistant", "old", "m1"),
            line("3", "1", "assistant", "retry", "m2"),
            line("4", "2", "user", "the old one was better"),
        ],
    )
    assert said == ["start", "old", "the old one was better"]
    assert [p.line for p in problems] == [3]


def test_a_rewind_to_the_very_start_leaves_everything_before_it(tmp_path: Path) -> None:
    said, problems = texts(
        tmp_path,
        [
            line("1", None, "user", "first try"),
            line("2", "1", "assistant", "answer", "m1"),
            line("3", None, "user", "second try"),
            line("4", "3", "assistant", "better", "m2"),
        ],
    )
    assert said == ["second try", "better"]
    assert [p.line for p in problems] == [1, 2]


@pytest.mark.parametrize("next_parent", ["r1", "r2"])
def test_parallel_calls_and_their_results_are_one_branch_whichever_result_goes_on(
    tmp_path: Path, next_parent: str
) -> None:
    said, problems = texts(
        tmp_path,
        [
            line("1", None, "user", "both"),
            line("a1", "1", "assistant", call("t1"), "m1"),
            line("a2", "a1", "assistant", call("t2"), "m1"),
            line("r1", "a1", "user", result("t1")),
            line("r2", "a2", "user", result("t2")),
            line("2", next_parent, "assistant", "done", "m2"),
        ],
    )
    assert said == ["both", "t1+t2", "result t1", "result t2", "done"]
    assert problems == []


def test_lines_of_other_kinds_carry_the_branch(tmp_path: Path) -> None:
    said, problems = texts(
        tmp_path,
        [
            line("1", None, "user", "start"),
            {"type": "progress", "uuid": "p", "parentUuid": "1", "sessionId": "s"},
            attachment("t", "p", type="todo_reminder", content=[]),
            line("2", "t", "assistant", "answer", "m1"),
        ],
    )
    assert (said, problems) == (["start", "answer"], [])


@pytest.mark.parametrize("logical", [{"logicalParentUuid": "2"}, {}])
def test_a_compaction_goes_on_with_what_stood_before_it(tmp_path: Path, logical: dict[str, str]) -> None:
    boundary = {"type": "system", "subtype": "compact_boundary", "uuid": "b", "parentUuid": None, "sessionId": "s"}
    said, problems = texts(
        tmp_path,
        [
            line("1", None, "user", "start"),
            line("2", "1", "assistant", "answer", "m1"),
            {**boundary, **logical},
            line("3", "b", "user", "the summary", isCompactSummary=True),
            line("4", "3", "assistant", "on", "m2"),
        ],
    )
    assert (said, problems) == (["start", "answer", "the summary", "on"], [])


def test_a_log_without_links_or_of_two_sessions_or_with_a_lost_line_is_read_in_file_order(tmp_path: Path) -> None:
    unlinked = [line(str(k), None, "user", f"say {k}") for k in range(3)]
    assert texts(tmp_path, unlinked) == (["say 0", "say 1", "say 2"], [])
    two = [line("1", None, "user", "one"), line("2", "1", "assistant", "answer", "m1")]
    two.append({**line("3", None, "user", "another day"), "sessionId": "t"})
    assert texts(tmp_path, two) == (["one", "answer", "another day"], [])
    lost = [*two[:2], line("4", "3-is-lost", "user", "after the gap")]
    assert texts(tmp_path, lost) == (["one", "answer", "after the gap"], [])


def test_a_circle_of_parents_ends(tmp_path: Path) -> None:
    said, _ = texts(tmp_path, [line("1", "1", "user", "me"), line("1", "1", "user", "me again")])
    assert said[-1] == "me again"


def test_a_sub_agents_lines_are_not_left_behind(tmp_path: Path) -> None:
    said, problems = texts(
        tmp_path,
        [
            line("1", None, "user", "start"),
            line("s", None, "user", "sub task", isSidechain=True),
            line("s2", "s", "assistant", "sub answer", "m9", isSidechain=True),
            line("2", "1", "assistant", "answer", "m1"),
        ],
    )
    assert sorted(said) == ["answer", "start", "sub answer", "sub task"]
    assert problems == []


TEXT_ATTACHMENTS: dict[str, tuple[Line, str]] = {
    "file": (
        {
            "type": "file",
            "filename": "/a.py",
            "content": {"type": "text", "file": {"filePath": "/a.py", "content": "x = 1"}},
        },
        "/a.py:\nx = 1",
    ),
    "edited": ({"type": "edited_text_file", "filename": "/b.py", "snippet": "1\ty = 2"}, "/b.py:\n1\ty = 2"),
    "directory": ({"type": "directory", "path": "/src", "content": "a.py\nb.py"}, "/src:\na.py\nb.py"),
    "memory": (
        {"type": "nested_memory", "path": "/N.md", "content": {"type": "Project", "content": "be kind"}},
        "/N.md:\nbe kind",
    ),
    "queued": ({"type": "queued_command", "prompt": "and the tests", "commandMode": "prompt"}, "and the tests"),
    "queued_parts": (
        {"type": "queued_command", "prompt": [{"type": "text", "text": "look"}, {"type": "image"}]},
        "look",
    ),
    "hook": ({"type": "hook_additional_context", "content": ["note one", "note two"]}, "note one\nnote two"),
    "new_kind": ({"type": "of_tomorrow", "content": "still text"}, "still text"),
}


@pytest.mark.parametrize("case", TEXT_ATTACHMENTS)
def test_an_attachment_with_text_is_said_by_the_user(tmp_path: Path, case: str) -> None:
    fields, expected = TEXT_ATTACHMENTS[case]
    path = tmp_path / "log.jsonl"
    lines = [line("1", None, "user", "look"), attachment("2", "1", **fields), line("3", "2", "assistant", "ok", "m")]
    path.write_text("\n".join(map(json.dumps, lines)))
    items = list(read_transcript(path))
    assert [i.message.content for i in items if isinstance(i, Imported)] == ["look", expected, "ok"]
    assert isinstance(items[1], Imported)
    assert items[1].message.role is Role.USER
    assert items[1].message.source == "claude-code:2"


def test_known_attachments_without_text_are_silent_and_unknown_ones_are_named(tmp_path: Path) -> None:
    start = line("1", None, "user", "hi")
    quiet = [
        attachment("2", "1", type="todo_reminder", content=["x"]),
        attachment("3", "2", type="token_usage", used=5),
    ]
    assert texts(tmp_path, [start, *quiet]) == (["hi"], [])
    said, problems = texts(tmp_path, [start, attachment("2", "1", type="hologram", data=1)])
    assert said == ["hi"]
    assert [(p.line, p.reason) for p in problems] == [(2, "an attachment of the unknown kind 'hologram'")]


def test_an_attachment_on_a_branch_that_was_left_is_left_too(tmp_path: Path) -> None:
    said, problems = texts(
        tmp_path,
        [
            line("1", None, "user", "start"),
            line("2", "1", "user", "with file"),
            attachment("3", "2", type="directory", path="/x", content="list"),
            line("4", "1", "user", "without"),
        ],
    )
    assert said == ["start", "without"]
    assert [p.line for p in problems] == [2, 3]


def test_a_log_of_nothing_but_odd_lines_still_ends_with_its_error(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('[]\n5\n{"type": "user", "uuid": [], "parentUuid": {}}\n{"type": "attachment", "uuid": "x"}\n')
    with pytest.raises(TranscriptError, match="nothing could be used"):
        list(read_transcript(path, format="claude-code"))
