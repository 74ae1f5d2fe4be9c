"""Every format on a small sample of its own: roles, calls, results, thinking, times, sub-agents, compaction."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from akashic_daemon.trajectory.message import Message, Role, ToolCall
from akashic_daemon.transcript import Imported, Problem, detect_format, read_transcript

NOON_S = 1767268800.0
NOON = "2026-01-01T12:00:00Z"


def write(tmp_path: Path, value: Any, *, lines: bool = False) -> Path:
    path = tmp_path / "transcript"
    text = "\n".join(json.dumps(v) for v in value) if lines else json.dumps(value, indent=1)
    path.write_text(text, encoding="utf-8")
    return path


def read(path: Path, expected_format: str) -> list[Imported]:
    assert detect_format(path) == expected_format
    items = list(read_transcript(path))
    assert [item for item in items if isinstance(item, Problem)] == []
    return [item for item in items if isinstance(item, Imported)]


def claude(kind: str, content: Any, **more: Any) -> dict[str, Any]:
    message = {"role": kind, "content": content, **more.pop("message", {})}
    return {"type": kind, "uuid": "u", "sessionId": "s", "timestamp": NOON, "message": message, **more}


def use(call_id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "Bash", "input": {"command": "ls é"}}


def result(call_id: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


def test_claude_code_lines_of_one_message_id_become_one_message_before_its_results(tmp_path: Path) -> None:
    one = {"message": {"id": "m1"}}
    items = read(
        write(
            tmp_path,
            [
                claude("user", "list"),
                claude("assistant", [{"type": "thinking", "thinking": "hm"}], **one),
                claude("assistant", [{"type": "text", "text": "Looking."}, use("a")], **one),
                {"type": "progress", "uuid": "p", "sessionId": "s"},
                claude("user", [result("a", "x.py")]),
                claude("assistant", [use("b")], **one),
                claude("user", [result("b", [{"type": "text", "text": "no"}, {"type": "image"}], is_error=True)]),
                claude("assistant", "Done.", message={"id": "m2"}),
            ],
            lines=True,
        ),
        "claude-code",
    )
    messages = [item.message for item in items]
    assert [m.role for m in messages] == ["user", "assistant", "tool", "tool", "assistant"]
    assert messages[1].thinking == "hm"
    assert messages[1].content == "Looking."
    assert messages[1].tool_calls == tuple(ToolCall(i, "Bash", '{"command":"ls é"}') for i in "ab")
    assert messages[2].tool_call_id == "a"
    assert (messages[3].content, messages[3].is_error) == ("no\n[image]", True)
    assert {m.event_time_s for m in messages} == {NOON_S}
    assert [item.line for item in items] == [1, 2, 5, 7, 8]
    assert messages[0].source == "claude-code:u"


def test_claude_code_sub_agents_are_conversations_of_their_own(tmp_path: Path) -> None:
    items = read(
        write(
            tmp_path,
            [
                claude("user", "main"),
                claude("user", "sub", agentId="a1", isSidechain=True),
                claude("user", "old sub", isSidechain=True, uuid="r", parentUuid=None),
                claude("assistant", "old answer", isSidechain=True, uuid="r2", parentUuid="r"),
                claude("user", "main again"),
            ],
            lines=True,
        ),
        "claude-code",
    )
    threads = {item.message.content: (item.conversation, item.is_main) for item in items}
    assert threads == {
        "main": ("main", True),
        "main again": ("main", True),
        "sub": ("a1", False),
        "old sub": ("sidechain-r", False),
        "old answer": ("sidechain-r", False),
    }


def test_claude_code_compaction_summary_is_marked(tmp_path: Path) -> None:
    lines = [
        {"type": "system", "subtype": "compact_boundary", "uuid": "b", "content": "Conversation compacted"},
        claude("user", "We did this.", isCompactSummary=True),
        claude("user", "go on"),
    ]
    items = read(write(tmp_path, lines, lines=True), "claude-code")
    assert [(item.message.content, item.message.compaction) for item in items] == [
        ("We did this.", True),
        ("go on", False),
    ]


def test_claude_code_unknown_lines_are_problems_with_their_number(tmp_path: Path) -> None:
    lines = [claude("user", "hi"), {"type": "novelty", "uuid": "n"}, "a bare string", claude("user", "on")]
    items = list(read_transcript(write(tmp_path, lines, lines=True)))
    assert [item.line for item in items if isinstance(item, Problem)] == [2, 3]
    assert sum(isinstance(item, Imported) for item in items) == 2


def codex(payload: dict[str, Any], kind: str = "response_item") -> dict[str, Any]:
    return {"timestamp": NOON, "type": kind, "payload": payload}


def test_codex_takes_response_items_once_and_joins_a_response(tmp_path: Path) -> None:
    arguments = '{"command": ["ls"],  "x": 1}'
    lines = [
        codex({"id": "1"}, "session_meta"),
        codex({"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "rules"}]}),
        codex({"type": "user_message", "message": "twice"}, "event_msg"),
        codex({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "twice"}]}),
        codex({"type": "reasoning", "summary": [{"type": "summary_text", "text": "plan"}], "encrypted_content": "x"}),
        codex({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Looking."}]}),
        codex({"type": "function_call", "name": "shell", "arguments": arguments, "call_id": "c1"}),
        codex({"type": "custom_tool_call", "name": "apply_patch", "input": "*** Begin", "call_id": "c2"}),
        codex({"type": "function_call_output", "call_id": "c1", "output": '{"output":"x","metadata":{"exit_code":2}}'}),
        codex({"type": "custom_tool_call_output", "call_id": "c2", "output": "ok"}),
        codex({"message": "Summary."}, "compacted"),
    ]
    messages = [item.message for item in read(write(tmp_path, lines, lines=True), "codex")]
    assert [m.role for m in messages] == ["system", "user", "assistant", "tool", "tool", "user"]
    assert (messages[2].thinking, messages[2].content) == ("plan", "Looking.")
    assert messages[2].tool_calls == (
        ToolCall("c1", "shell", arguments),
        ToolCall("c2", "apply_patch", '{"input":"*** Begin"}'),
    )
    assert (messages[3].tool_call_id, messages[3].is_error) == ("c1", True)
    assert (messages[4].tool_call_id, messages[4].is_error) == ("c2", False)
    assert messages[5].compaction
    assert messages[0].event_time_s == NOON_S


def test_codex_rollouts_without_envelopes_are_read(tmp_path: Path) -> None:
    lines = [
        {"id": "x", "timestamp": NOON, "instructions": None},
        {"record_type": "state"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
    ]
    items = read(write(tmp_path, lines, lines=True), "codex")
    assert [item.message.content for item in items] == ["hi"]


def test_swe_agent_skips_demonstrations_and_gives_observations_the_tool_role(tmp_path: Path) -> None:
    call = {"id": "t1", "type": "function", "function": {"name": "bash", "arguments": '{"command":"ls"}'}}
    history = [
        {"role": "system", "content": "S", "agent": "primary"},
        {"role": "user", "content": "demo", "agent": "primary", "is_demo": True},
        {"role": "user", "content": "issue", "agent": "primary"},
        {"role": "assistant", "content": "do", "thought": "do", "action": "ls", "agent": "primary"},
        {"role": "user", "content": "x.py", "agent": "primary"},
        {"role": "assistant", "content": "do", "action": "ls", "agent": "primary", "tool_calls": [call]},
        {"role": "tool", "content": [{"type": "text", "text": "y"}], "agent": "primary", "tool_call_ids": ["t1"]},
        {"role": "assistant", "content": "sub", "agent": "reviewer"},
    ]
    document = {"environment": "e", "trajectory": [], "history": history, "info": {}}
    items = read(write(tmp_path, document), "swe-agent")
    assert [item.message.role for item in items] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "assistant",
    ]
    assert items[4].message.tool_calls == (ToolCall("t1", "bash", '{"command":"ls"}'),)
    assert (items[5].message.content, items[5].message.tool_call_id) == ("y", "t1")
    assert (items[6].conversation, items[6].is_main) == ("reviewer", False)


def test_swe_agent_without_a_history_gives_its_steps(tmp_path: Path) -> None:
    steps = [{"action": "ls", "observation": "x.py", "response": "Let me look. ls", "thought": "Let me look."}]
    items = read(write(tmp_path, {"trajectory": steps, "info": {}}), "swe-agent")
    assert [(i.message.role, i.message.content) for i in items] == [("assistant", "Let me look. ls"), ("tool", "x.py")]


MINI = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": "fix"},
    {"role": "assistant", "content": "Look.\n```bash\nls\n```"},
    {"role": "user", "content": "<returncode>0</returncode>\n<output>\nx\n</output>"},
    {"role": "assistant", "content": "No command."},
    {"role": "user", "content": "Please give one command."},
]


@pytest.mark.parametrize("wrap", [False, True])
def test_mini_swe_agent_output_of_a_command_is_a_tool_result(tmp_path: Path, wrap: bool) -> None:
    document = {"messages": MINI, "info": {}, "trajectory_format": "mini-swe-agent-1"} if wrap else MINI
    items = read(write(tmp_path, document), "mini-swe-agent")
    assert [item.message.role for item in items] == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert {item.conversation for item in items} == {"main"}


def event(kind: str, **more: Any) -> dict[str, Any]:
    return {"id": f"id-{kind}", "timestamp": "2026-01-01T12:00:00", "source": "agent", "kind": kind, **more}


def action(call_id: str, thought: str) -> dict[str, Any]:
    return event(
        "ActionEvent",
        thought=[{"type": "text", "text": thought}],
        reasoning_content="why",
        tool_call={"id": call_id, "name": "terminal", "arguments": '{"command": "ls"}'},
        llm_response_id="r1",
    )


OPENHANDS = [
    event("ConversationStateUpdateEvent", key="k", value="v"),
    event("SystemPromptEvent", system_prompt={"type": "text", "text": "S"}),
    event("MessageEvent", llm_message={"role": "user", "content": [{"type": "text", "text": "fix"}]}),
    action("c1", "<think>why</think>\nLook."),
    event("ObservationEvent", tool_name="terminal", tool_call_id="c1", observation={"content": "x", "is_error": True}),
    action("c2", ""),
    event("AgentErrorEvent", tool_name="terminal", tool_call_id="c2", error="bad"),
    event("Condensation", summary="So far.", forgotten_event_ids=[]),
]


@pytest.mark.parametrize("lines", [False, True])
def test_openhands_actions_of_one_response_are_one_message(tmp_path: Path, lines: bool) -> None:
    messages = [item.message for item in read(write(tmp_path, OPENHANDS, lines=lines), "openhands")]
    assert [m.role for m in messages] == ["system", "user", "assistant", "tool", "tool", "user"]
    assert (messages[2].content, messages[2].thinking) == ("Look.", "why")
    assert messages[2].tool_calls == tuple(ToolCall(i, "terminal", '{"command": "ls"}') for i in ("c1", "c2"))
    assert (messages[3].content, messages[3].name, messages[3].is_error) == ("x", "terminal", True)
    assert (messages[4].content, messages[4].is_error) == ("bad", True)
    assert messages[5].compaction
    assert {m.event_time_s for m in messages} == {NOON_S}


def test_openhands_events_from_before_1_0_are_read(tmp_path: Path) -> None:
    metadata = {"tool_call_id": "t1", "function_name": "execute_bash"}
    function = {"name": "execute_bash", "arguments": '{"command":  "ls"}'}
    response = {"id": "r", "choices": [{"message": {"tool_calls": [{"id": "t1", "function": function}]}}]}
    events = [
        {"id": 0, "source": "user", "action": "message", "args": {"content": "fix"}},
        {"id": 1, "source": "environment", "observation": "agent_state_changed", "content": ""},
        {
            "id": 2,
            "source": "agent",
            "action": "run",
            "args": {"command": "ls", "thought": "Look."},
            "tool_call_metadata": {**metadata, "model_response": response},
        },
        {"id": 3, "source": "agent", "observation": "run", "content": "x", "cause": 2, "tool_call_metadata": metadata},
        {"id": 4, "source": "agent", "action": "finish", "args": {"outputs": {}}},
    ]
    messages = [item.message for item in read(write(tmp_path, events), "openhands")]
    assert [m.role for m in messages] == ["user", "assistant", "tool", "assistant"]
    assert messages[1].tool_calls == (ToolCall("t1", "execute_bash", '{"command":  "ls"}'),)
    assert messages[2].tool_call_id == "t1"
    assert messages[3].tool_calls == (ToolCall("event-4", "finish", '{"outputs":{}}'),)


def test_openhands_model_call_log_ends_with_the_response(tmp_path: Path) -> None:
    reply = {"role": "assistant", "content": "hello"}
    log = {
        "messages": [{"role": "user", "content": "hi"}],
        "response": {"created": NOON_S, "choices": [{"message": reply}]},
    }
    messages = [item.message for item in read(write(tmp_path, log), "openhands")]
    assert [(m.role, m.content) for m in messages] == [("user", "hi"), ("assistant", "hello")]
    assert messages[1].event_time_s == NOON_S


def test_atif_results_follow_their_step_and_copied_context_is_skipped(tmp_path: Path) -> None:
    call = {"tool_call_id": "c", "function_name": "go", "arguments": {"to": "/"}}
    steps = [
        {"step_id": 1, "source": "user", "message": "old", "is_copied_context": True},
        {"step_id": 2, "source": "system", "message": "S"},
        {"step_id": 3, "source": "user", "message": [{"type": "text", "text": "a"}, {"type": "image"}]},
        {
            "step_id": 4,
            "timestamp": NOON,
            "source": "agent",
            "message": "going",
            "reasoning_content": "why",
            "tool_calls": [call],
            "observation": {"results": [{"source_call_id": "c", "content": "there"}]},
        },
    ]
    child = {"session_id": "child", "steps": [{"step_id": 1, "source": "agent", "message": "sub"}]}
    document = {"schema_version": "ATIF-v1.7", "session_id": "x", "steps": steps, "subagent_trajectories": [child]}
    items = read(write(tmp_path, document), "atif")
    messages = [item.message for item in items]
    assert [m.role for m in messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert messages[1].content == "a\n[image]"
    assert messages[2] == Message(
        Role.ASSISTANT,
        "going",
        thinking="why",
        tool_calls=(ToolCall("c", "go", '{"to":"/"}'),),
        event_time_s=NOON_S,
        source="atif:x#4",
    )
    assert (messages[3].tool_call_id, messages[3].content) == ("c", "there")
    assert (items[4].conversation, items[4].is_main) == ("child", False)


CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": [{"type": "text", "text": "hello"}]}]


@pytest.mark.parametrize("form", ["list", "object", "lines"])
def test_openai_messages_are_read_in_every_wrapping(tmp_path: Path, form: str) -> None:
    value = {"messages": CHAT} if form == "object" else CHAT
    items = read(write(tmp_path, value, lines=form == "lines"), "openai")
    assert [(i.conversation, i.message.content) for i in items] == [("main", "hi"), ("main", "hello")]


@pytest.mark.parametrize("lines", [False, True])
def test_runs_are_conversations_named_by_task_and_trial(tmp_path: Path, lines: bool) -> None:
    runs: list[Any] = [
        {"task_id": 3, "trial": 0, "traj": CHAT},
        {"task_id": 3, "trial": 0, "traj": CHAT},
        {"messages": CHAT},
    ]
    items = read(write(tmp_path, runs, lines=lines), "openai")
    names = list(dict.fromkeys(item.conversation for item in items))
    assert names == ["task-3-trial-0", "task-3-trial-0#1", "run-2"]
    assert all(item.is_main for item in items)


def test_own_export_comes_back_as_it_was(tmp_path: Path) -> None:
    messages = [
        Message(Role.USER, "hi"),
        Message(Role.USER, "all before", compaction=True, event_time_s=2.5, source="codex:line-1"),
        Message(Role.ASSISTANT, "", thinking="t", tool_calls=(ToolCall("a", "f", '{ "x":1 }'),)),
        Message(Role.TOOL, "no", tool_call_id="a", name="f", is_error=True),
    ]
    items = read(write(tmp_path, [m.to_json() for m in messages], lines=True), "akashic")
    assert [item.message for item in items] == messages


def test_plain_text_becomes_one_user_message(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(b"\xef\xbb\xbf[note] one\r\ntwo\r\n")
    items = read(path, "text")
    assert [(i.message.role, i.message.content) for i in items] == [("user", "[note] one\ntwo\n")]


def test_messages_in_the_form_of_anthropics_api_keep_their_calls_and_results(tmp_path: Path) -> None:
    request = {
        "system": "S",
        "messages": [
            {"role": "user", "content": "list"},
            {"role": "assistant", "content": [{"type": "text", "text": "Looking."}, use("a")]},
            {"role": "user", "content": [result("a", "x.py"), {"type": "text", "text": "and?"}]},
        ],
    }
    messages = [item.message for item in read(write(tmp_path, request), "openai")]
    assert [(m.role, m.content) for m in messages] == [
        ("system", "S"),
        ("user", "list"),
        ("assistant", "Looking."),
        ("tool", "x.py"),
        ("user", "and?"),
    ]
    assert messages[2].tool_calls == (ToolCall("a", "Bash", '{"command":"ls é"}'),)
    assert messages[3].tool_call_id == "a"


def test_stream_json_of_claude_code_is_read_with_its_sub_agents(tmp_path: Path) -> None:
    lines = [
        {"type": "system", "subtype": "init", "session_id": "s"},
        {"type": "assistant", "session_id": "s", "message": {"id": "m", "content": [{"type": "text", "text": "hi"}]}},
        {"type": "user", "session_id": "s", "parent_tool_use_id": "t", "message": {"content": "sub"}},
        {"type": "result", "session_id": "s", "result": "hi"},
    ]
    items = read(write(tmp_path, lines, lines=True), "claude-code")
    assert {(i.message.content, i.conversation) for i in items} == {("hi", "main"), ("sub", "t")}


def test_a_tau2_document_gives_each_simulation_with_its_calls_and_results(tmp_path: Path) -> None:
    def tool(call_id: str, content: str, error: bool) -> dict[str, Any]:
        return {"id": call_id, "role": "tool", "content": content, "requestor": "assistant", "error": error}

    def calls(*ids: str) -> list[dict[str, Any]]:
        return [{"id": i, "name": "get", "arguments": {"key": i}, "requestor": "assistant"} for i in ids]

    first = [
        {"role": "assistant", "content": "Hello!", "tool_calls": None, "turn_idx": 0, "timestamp": NOON, "cost": 0.0},
        {"role": "user", "content": "Change it.", "tool_calls": None, "turn_idx": 1},
        {"role": "assistant", "content": None, "tool_calls": calls("a"), "turn_idx": 2},
        tool("a", "none", True),
        {"role": "assistant", "content": None, "tool_calls": calls("b", "c"), "turn_idx": 4},
        {"role": "tool", "tool_messages": [tool("b", "bee", False), tool("c", "sea", False)]},
    ]
    runs = [
        {"id": "sim-1", "task_id": "7", "trial": 0, "reward_info": {"reward": 1.0}, "messages": first},
        {"task_id": "7", "trial": 1, "messages": [{"role": "user", "content": "again"}]},
        {"task_id": "7", "trial": 1, "messages": [{"role": "user", "content": "same name"}]},
    ]
    document = {"timestamp": NOON, "info": {"git_commit": "x"}, "tasks": [{"id": "7"}], "simulations": runs}
    items = read(write(tmp_path, document), "openai")
    keys = [item.conversation for item in items]
    assert keys == ["sim-1"] * 7 + ["task-7-trial-1", "task-7-trial-1#2"]
    messages = [item.message for item in items]
    assert messages[0].event_time_s == NOON_S
    assert messages[2].tool_calls == (ToolCall("a", "get", '{"key":"a"}'),)
    results = [(m.tool_call_id, m.content, m.is_error) for m in messages if m.role is Role.TOOL]
    assert results == [("a", "none", True), ("b", "bee", False), ("c", "sea", False)]


def test_a_tau2_simulation_without_messages_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    runs = [{"id": "broken"}, {"id": "good", "messages": [{"role": "user", "content": "hi"}]}]
    items = list(read_transcript(write(tmp_path, {"tasks": [], "simulations": runs})))
    assert [i.conversation for i in items if isinstance(i, Imported)] == ["good"]
    assert [i.reason for i in items if isinstance(i, Problem)] == ["broken: no list of messages"]
