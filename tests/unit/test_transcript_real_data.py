"""Importers on real logs: counts taken from the raw files by other means must agree with what comes out."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from akashic_daemon.trajectory.message import Message
from akashic_daemon.transcript import Imported, detect_format, read_transcript

DATA = Path(__file__).parents[2].parent / "shared" / "data"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="real logs aren't here")

FILES = sorted((DATA / "transcripts").glob("*")) + sorted((DATA / "replays").glob("*"))


def imported(path: Path) -> list[Imported]:
    items = list(read_transcript(path))
    assert all(isinstance(item, Imported) for item in items), [i for i in items if not isinstance(i, Imported)]
    return [item for item in items if isinstance(item, Imported)]


def only(pattern: str) -> Path:
    (path,) = (DATA / "transcripts").glob(pattern)
    return path


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_real_log_is_recognised_and_read_without_a_problem(path: Path) -> None:
    named = path.name.partition("--")[0]
    expected = (
        named if named in ("claude-code", "codex", "swe-agent", "mini-swe-agent", "openhands", "atif") else "openai"
    )
    assert detect_format(path) == expected
    items = imported(path)
    assert items
    for item in items:
        assert Message.from_json(json.loads(json.dumps(item.message.to_json()))) == item.message


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_results_in_a_real_log_follow_the_call_that_they_answer(path: Path) -> None:
    known: set[tuple[str, str]] = set()
    orphans = 0
    for item in imported(path):
        known |= {(item.conversation, call.id) for call in item.message.tool_calls}
        answered = item.message.tool_call_id
        orphans += answered is not None and (item.conversation, answered) not in known
    # One log of events begins after a call that it holds the result of.
    assert orphans == (1 if path.name.endswith("goal.events.jsonl") else 0)


def claude_files() -> list[Path]:
    return [path for path in FILES if path.name.startswith("claude-code")]


@pytest.mark.parametrize("path", claude_files(), ids=lambda path: path.name)
def test_claude_code_loses_no_call_result_or_api_message(path: Path) -> None:
    blocks: Counter[str] = Counter()
    responses = set()
    for line in lines(path):
        body = line.get("message") or {}
        if isinstance(body.get("content"), list):
            blocks.update(block["type"] for block in body["content"])
        if line["type"] == "assistant":
            responses.add(body["id"])
    messages = [item.message for item in imported(path)]
    assert sum(len(m.tool_calls) for m in messages) == blocks["tool_use"]
    assert sum(m.role == "tool" for m in messages) == blocks["tool_result"]
    assert sum(m.role == "assistant" for m in messages) == len(responses)
    assert all(m.event_time_s is not None for m in messages)


def test_claude_code_main_and_sub_agent_files_are_told_apart() -> None:
    main = imported(only("claude-code--spotter-*[0-9].jsonl"))
    assert {(item.conversation, item.is_main) for item in main} == {("main", True)}
    assert sum(item.message.compaction for item in main) == 1
    child = imported(only("claude-code--spotter-*.subagent.jsonl"))
    assert {item.is_main for item in child} == {False}
    assert {item.conversation for item in child} == {line["agentId"] for line in lines(only("*.subagent.jsonl"))}


def test_codex_keeps_arguments_byte_for_byte() -> None:
    path = only("codex--*")
    payloads = [line["payload"] for line in lines(path) if line["type"] == "response_item"]
    arguments = [item["arguments"] for item in payloads if item["type"] == "function_call"]
    messages = [item.message for item in imported(path)]
    assert [call.arguments for m in messages for call in m.tool_calls] == arguments
    kinds = Counter(item["type"] for item in payloads)
    assert sum(m.role == "tool" for m in messages) == kinds["function_call_output"]
    assert sum(bool(m.content) and m.role in ("user", "assistant") for m in messages) == kinds["message"]


@pytest.mark.parametrize("path", [p for p in FILES if p.suffix == ".traj"], ids=lambda path: path.name)
def test_swe_agent_observations_match_the_steps(path: Path) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    messages = [item.message for item in imported(path)]
    assert len(messages) == sum(not entry.get("is_demo") for entry in document["history"])
    seen = [m.content for m in messages if m.role == "tool"]
    assert seen
    for content, step in zip(seen, document["trajectory"], strict=False):
        assert step["observation"].strip()[:200] in content


def test_tau_bench_runs_keep_their_messages() -> None:
    path = only("tau-bench--*")
    runs = json.loads(path.read_text(encoding="utf-8"))
    items = imported(path)
    counts = Counter(item.conversation for item in items)
    assert list(counts.values()) == [len(run["traj"]) for run in runs]
    arguments = [c["function"]["arguments"] for r in runs for m in r["traj"] for c in m.get("tool_calls") or []]
    assert [c.arguments for item in items for c in item.message.tool_calls] == arguments
