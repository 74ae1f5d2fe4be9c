"""Cache programs on text, for servers whose cache can't be edited."""

from __future__ import annotations

import pytest

from akashic_daemon.errors import BadRequest, Unsupported
from akashic_daemon.program.policy import load
from akashic_daemon.program.wire import Asked, from_wire
from akashic_daemon.remote.pruned import prune
from akashic_daemon.trajectory.message import Message, Role, ToolCall


def tokens_of(message: Message) -> int:
    return 4 + len(message.content) // 4


def history(results: int) -> list[Message]:
    out = [Message(Role.SYSTEM, "be brief"), Message(Role.USER, "look")]
    for i in range(results):
        out.append(Message(Role.ASSISTANT, "", tool_calls=(ToolCall(f"c{i}", "run", "{}"),)))
        out.append(Message(Role.TOOL, f"result {i} " * 20, tool_call_id=f"c{i}"))
    return [*out, Message(Role.USER, "and now?")]


def asked(*ops: dict[str, object]) -> Asked:
    return Asked(tuple(from_wire(ops)))


def test_without_a_program_the_history_is_sent_as_it_is() -> None:
    messages = history(2)
    pruned = prune(messages, Asked(), tokens_of, window_tokens=0)
    assert pruned.messages == tuple(messages)
    assert pruned.notes == ()


def test_a_result_that_was_dropped_leaves_a_stand_in_because_its_call_stays() -> None:
    messages = history(3)
    pruned = prune(messages, asked({"op": "drop", "select": "tool[0]"}), tokens_of, window_tokens=0)
    assert [m.role for m in pruned.messages] == [m.role for m in messages]
    assert pruned.messages[3].content == "[removed]"
    assert pruned.messages[5] == messages[5]
    assert pruned.dropped_tokens == tokens_of(messages[3])


def test_a_call_that_was_dropped_takes_its_result_along() -> None:
    messages = history(2)
    pruned = prune(messages, asked({"op": "drop", "messages": [2]}), tokens_of, window_tokens=0)
    assert pruned.messages == (*messages[:2], *messages[4:])
    assert any("2 messages left out" in note for note in pruned.notes)


def test_a_result_that_never_had_a_call_stays() -> None:
    orphan = Message(Role.TOOL, "from before", tool_call_id="lost")
    messages = [history(1)[0], orphan, *history(1)[1:]]
    pruned = prune(messages, asked({"op": "drop", "messages": [3]}), tokens_of, window_tokens=0)
    assert pruned.messages == (*messages[:3], messages[-1])
    assert list(pruned.numbers) == [0, 1, 2, 5]


def test_a_message_is_replaced_where_it_stands() -> None:
    messages = history(2)
    pruned = prune(messages, asked({"op": "replace", "message": 3, "content": "short"}), tokens_of, window_tokens=0)
    assert [m.content for m in pruned.messages] == ["short" if i == 3 else m.content for i, m in enumerate(messages)]
    longer = prune(messages, asked({"op": "replace", "message": 1, "content": "l" * 900}), tokens_of, window_tokens=0)
    assert longer.messages[1].content == "l" * 900


def test_a_policy_works_by_counts_and_by_the_window() -> None:
    messages = history(6)
    rolling = Asked(policy=load("tool-rolling-drop:keep=2"))
    pruned = prune(messages, rolling, tokens_of, window_tokens=8192)
    results = [m.content for m in pruned.messages if m.role is Role.TOOL]
    assert results == ["[removed]"] * 4 + [m.content for m in messages if m.role is Role.TOOL][4:]


def test_repos_is_said_to_do_nothing() -> None:
    pruned = prune(history(1), asked({"op": "repos"}), tokens_of, window_tokens=0)
    assert pruned.messages == tuple(history(1))
    assert any("repos does nothing" in note for note in pruned.notes)


def test_what_can_t_be_done_in_text_is_refused() -> None:
    with pytest.raises(Unsupported, match="only the remote server knows its tokens"):
        prune(history(1), asked({"op": "drop", "tokens": [[3, 5]]}), tokens_of, window_tokens=0)
    with pytest.raises(BadRequest):
        prune(history(1), asked({"op": "drop", "messages": [0]}), tokens_of, window_tokens=0)
    with pytest.raises(BadRequest):
        prune(history(1), asked({"op": "drop", "messages": [99]}), tokens_of, window_tokens=0)
