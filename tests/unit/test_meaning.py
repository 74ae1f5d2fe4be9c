"""When two versions of a message count as the same, so that the older one's KV may stand for it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from akashic_daemon.sessions.traces import Known, Meaning
from akashic_daemon.trajectory.message import Message, Role, ToolCall

CALL = Message(Role.ASSISTANT, "", tool_calls=(ToolCall("1", "f", '{"a": 1, "b": [2]}'),))


def called(arguments: str, name: str = "f") -> Message:
    return replace(CALL, tool_calls=(ToolCall("1", name, arguments),))


def test_arguments_that_are_written_otherwise_mean_the_same() -> None:
    meaning = Meaning("")
    assert meaning.reason(CALL, called('{"b":[2],"a":1}')) == "arguments_reserialised"
    assert meaning.reason(CALL, called('{"b":[2],"a":2}')) is None
    assert meaning.reason(CALL, called('{"a": 1, "b": [2]}', "g")) is None
    assert meaning.reason(called("no json"), called("no  json")) is None


def test_text_that_differs_in_what_always_changes_means_the_same() -> None:
    old, new = Message(Role.SYSTEM, "now: 1\nbe exact"), Message(Role.SYSTEM, "now: 2\nbe exact")
    assert Meaning(r"^now: .*$").reason(old, new) == "volatile_text"
    assert Meaning("").reason(old, new) is None
    assert Meaning(r"^now: .*$").reason(old, replace(new, role=Role.USER)) is None
    assert Meaning(r"^now: .*$").reason(old, replace(new, content="now: 2\nbe vague")) is None


@pytest.mark.parametrize(
    ("before", "now", "reason"), [(set(), set(), "arguments_reserialised"), ({0}, set(), None), (set(), {0}, None)]
)
def test_what_operations_altered_is_compared_by_its_tokens_only(
    before: set[int], now: set[int], reason: str | None
) -> None:
    known = cast(Known, SimpleNamespace(messages=[CALL], altered=frozenset(before)))
    same = Meaning("").between(known, [called('{"b":[2],"a":1}')], frozenset(now))
    assert same(0, 0) == reason
