"""Anthropic's messages as a trajectory's: nothing is reordered, and marks that clients move about don't take part."""

from __future__ import annotations

from typing import Any

import pytest

from akashic_daemon.errors import BadRequest, Unsupported
from akashic_daemon.trajectory.message import Message, Role, ToolCall
from akashic_daemon.transcript.anthropic_messages import messages_from_anthropic


def read(*messages: Any, system: Any = None) -> list[Message]:
    return messages_from_anthropic(system, messages, model="tiny")


def test_text_and_a_block_of_it_are_the_same_message() -> None:
    plain = read({"role": "user", "content": "hi"})
    block = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}, "citations": None}
    assert plain == read({"role": "user", "content": [block]}) == [Message(Role.USER, "hi")]


def test_several_system_blocks_are_one_message_and_none_is_none() -> None:
    blocks = [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]
    assert read(system=blocks) == read(system="a\nb") == [Message(Role.SYSTEM, "a\nb")]
    assert read(system=None) == read(system="") == read(system=[]) == []


def test_a_system_message_in_mid_conversation_stays_there() -> None:
    user = {"role": "user", "content": "x"}
    roles = [m.role.value for m in read(user, {"role": "system", "content": "now"}, user, system="s")]
    assert roles == ["system", "user", "system", "user"]


def test_an_answer_keeps_its_thoughts_text_and_calls_apart() -> None:
    content = [
        {"type": "thinking", "thinking": "hm", "signature": "abc"},
        {"type": "redacted_thinking", "data": "xyz"},
        {"type": "text", "text": "Look."},
        {"type": "tool_use", "id": "t1", "name": "f", "input": {"b": 1, "a": "é"}},
        {"type": "tool_use", "id": "t2", "name": "g", "input": {}},
    ]
    calls = (ToolCall("t1", "f", '{"b":1,"a":"é"}'), ToolCall("t2", "g", "{}"))
    assert read({"role": "assistant", "content": content}) == [
        Message(Role.ASSISTANT, "Look.", thinking="hm", tool_calls=calls)
    ]


def test_results_are_messages_of_their_own_where_they_stand() -> None:
    content = [
        {"type": "tool_result", "tool_use_id": "t1", "content": "one"},
        {"type": "tool_result", "tool_use_id": "t2", "is_error": True, "content": [{"type": "text", "text": "two"}]},
        {"type": "tool_result", "tool_use_id": "t3"},
        {"type": "text", "text": "and"},
        {"type": "text", "text": "then"},
        {"type": "tool_result", "tool_use_id": "t4", "content": []},
    ]
    assert read({"role": "user", "content": content}) == [
        Message(Role.TOOL, "one", tool_call_id="t1"),
        Message(Role.TOOL, "two", tool_call_id="t2", is_error=True),
        Message(Role.TOOL, "", tool_call_id="t3"),
        Message(Role.USER, "and\nthen"),
        Message(Role.TOOL, "", tool_call_id="t4"),
    ]


@pytest.mark.parametrize(
    "source",
    [
        {"type": "text", "media_type": "text/plain", "data": "words"},
        {"type": "content", "content": "words"},
        {"type": "content", "content": [{"type": "text", "text": "words"}]},
    ],
)
def test_a_document_of_text_is_its_title_and_text(source: dict[str, Any]) -> None:
    block = {"type": "document", "title": "T", "source": source}
    assert read({"role": "user", "content": [block]}) == [Message(Role.USER, "T\nwords")]


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "source": {"type": "url", "url": "http://x"}},
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": ""}},
        {"type": "container_upload", "file_id": "f"},
        {"type": "x" * 10_000},
    ],
)
def test_what_no_text_model_reads_is_refused_with_the_models_name(block: dict[str, Any]) -> None:
    with pytest.raises(Unsupported, match=r"messages\[1\]\.content\[0\].*model tiny") as caught:
        read({"role": "user", "content": "x"}, {"role": "user", "content": [block]})
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("message", "place"),
    [
        (5, "messages[0]"),
        ({"content": "x"}, "messages[0].role"),
        ({"role": ["user"], "content": "x"}, "messages[0].role"),
        ({"role": "user", "content": {}}, "messages[0].content"),
        ({"role": "user", "content": [5]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": 5}]}, "messages[0].content[0].type"),
        ({"role": "system", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "document"}]}, "messages[0].content[0].source"),
        ({"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": "{}"}]}, "input"),
        ({"role": "assistant", "content": [{"type": "tool_use", "id": 5, "name": "b"}]}, "messages[0].content[0].id"),
        ({"role": "assistant", "content": [{"type": "thinking"}]}, "messages[0].content[0].thinking"),
    ],
)
def test_what_has_the_wrong_shape_is_refused_with_its_place(message: Any, place: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read(message)
    assert place in str(caught.value)


def test_half_a_surrogate_pair_becomes_a_character_that_can_be_stored() -> None:
    assert read({"role": "user", "content": "a\ud800"})[0].content == "a\ufffd"
