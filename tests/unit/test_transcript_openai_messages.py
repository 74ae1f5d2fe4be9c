"""OpenAI messages: what strict reading refuses and where it points, and what lenient reading takes."""

from __future__ import annotations

from typing import Any

import pytest

from akashic_daemon.errors import BadRequest, Unsupported
from akashic_daemon.trajectory.message import Message, Role, ToolCall
from akashic_daemon.transcript.openai_messages import messages_from_openai

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a" : 1}'}}


def test_a_conversation_with_calls_is_read_byte_for_byte() -> None:
    raw: list[dict[str, Any]] = [
        {"role": "developer", "content": "S"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "hm"},
        {"role": "tool", "content": "r", "tool_call_id": "c"},
        {"role": "tool", "content": "no id"},
    ]
    assert messages_from_openai(raw) == [
        Message(Role.SYSTEM, "S"),
        Message(Role.USER, "a\nb", name="ann"),
        Message(Role.ASSISTANT, "", thinking="hm", tool_calls=(ToolCall("c", "f", '{"a" : 1}'),)),
        Message(Role.TOOL, "r", tool_call_id="c"),
        Message(Role.TOOL, "no id"),
    ]


def test_arguments_may_be_the_object_that_a_client_made_of_them() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"b": [1, "ü"], "a": {}}}}
    (message,) = messages_from_openai([{"role": "assistant", "content": None, "tool_calls": [call]}])
    assert message.tool_calls == (ToolCall("c", "f", '{"b":[1,"ü"],"a":{}}'),)


@pytest.mark.parametrize(
    ("raw", "place"),
    [
        ({"role": "robot", "content": "x"}, "messages[1].role"),
        ({"content": "x"}, "messages[1].role"),
        ({"role": ["user"], "content": "x"}, "messages[1].role"),
        ("text", "messages[1]"),
        ({"role": "user"}, "messages[1].content"),
        ({"role": "user", "content": 3}, "messages[1].content"),
        ({"role": "user", "content": ["x"]}, "messages[1].content[0]"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content[0].text"),
        ({"role": "user", "content": [{"type": "hologram"}]}, "messages[1].content[0].type"),
        ({"role": "user", "content": "x", "name": 1}, "messages[1].name"),
        ({"role": "tool", "content": "x", "tool_call_id": 1}, "messages[1].tool_call_id"),
        ({"role": "user", "content": "x", "tool_calls": [CALL]}, "messages[1].tool_calls"),
        ({"role": "assistant", "tool_calls": {}}, "messages[1].tool_calls"),
        ({"role": "assistant", "tool_calls": [{**CALL, "id": None}]}, "messages[1].tool_calls[0].id"),
        ({"role": "assistant", "tool_calls": [{"id": "c"}]}, "messages[1].tool_calls[0].function"),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": []}}]},
            "messages[1].tool_calls[0].function.arguments",
        ),
    ],
)
def test_strict_reading_names_the_index_and_field(raw: Any, place: str) -> None:
    with pytest.raises(BadRequest) as caught:
        messages_from_openai([{"role": "user", "content": "ok"}, raw])
    assert f"{place}:" in caught.value.message


@pytest.mark.parametrize("kind", ["image_url", "input_image", "input_audio", "file"])
def test_strict_reading_refuses_parts_that_are_not_text_by_name(kind: str) -> None:
    with pytest.raises(Unsupported) as caught:
        messages_from_openai([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": kind}]}])
    assert "messages[0].content[1]" in caught.value.message
    assert kind in caught.value.message


def test_strict_reading_refuses_custom_calls() -> None:
    raw = {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "f", "input": "x"}}]}
    with pytest.raises(Unsupported):
        messages_from_openai([raw])


def test_lenient_reading_turns_other_parts_into_markers_and_takes_any_arguments() -> None:
    raw: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "image_url"}, {"type": "text", "text": "a"}, {"type": "hologram"}]},
        {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}, "timestamp": "2026-01-01T00:00:00"},
        {"role": "assistant", "tool_calls": [{"id": 7, "function": {"name": "f", "arguments": {"ü": [1]}}}]},
        {"role": "function", "name": "f", "content": {"deep": 1}},
    ]
    messages = messages_from_openai(raw, lenient=True)
    assert messages[0].content == "[image]\na\n[hologram]"
    assert messages[1].tool_calls == (ToolCall("", "f", "{}"),)
    assert messages[1].event_time_s == 1767225600.0
    assert messages[2].tool_calls == (ToolCall("7", "f", '{"ü":[1]}'),)
    assert (messages[3].role, messages[3].content) == ("tool", '{"deep":1}')


def test_lenient_reading_still_refuses_what_is_no_message() -> None:
    with pytest.raises(BadRequest):
        messages_from_openai([{"role": "robot"}], lenient=True)


@pytest.mark.parametrize("lenient", [False, True])
def test_lone_surrogates_are_replaced_and_pairs_kept(lenient: bool) -> None:
    (message,) = messages_from_openai([{"role": "user", "content": "a\ud800b\U0001f600"}], lenient=lenient)
    assert message.content == "a\ufffdb\U0001f600"
