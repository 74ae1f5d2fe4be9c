"""What requests of the Responses API ask for, and how answers look, over a service that echoes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import served_app
from akashic_daemon.engine.base import SamplingParams
from akashic_daemon.errors import AkashicError
from akashic_daemon.schedule.events import GenerationEvent, GenerationInput, TextDelta, ToolCallDelta
from akashic_daemon.trajectory.message import Message, Role, ToolCall
from echo_service import Caller, EchoService, finished
from served_app import header, scripted

PATH = "/v1/responses"
HELLO: dict[str, Any] = {"input": "a b", "store": False}
TOOL = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}


def post(service: EchoService, body: Mapping[str, Any] | bytes, path: str = PATH) -> Caller:
    return served_app.post(service, body, path)


def asked(home: Path, **fields: Any) -> GenerationInput:
    return served_app.asked(home, {**HELLO, **fields}, PATH)


def events_of(caller: Caller) -> list[dict[str, Any]]:
    """Return a stream's events; each names itself twice, and their numbers rise by one."""
    out = []
    for event in caller.text.split("\n\n")[:-1]:
        name, data = event.split("\n")
        out.append(json.loads(data.removeprefix("data: ")))
        assert out[-1]["type"] == name.removeprefix("event: ")
    assert [event["sequence_number"] for event in out] == list(range(len(out)))
    return out


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({}, "sampling", SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)),
        ({}, "max_tokens", None),
        ({"temperature": 0, "top_p": 0.5}, "sampling", SamplingParams(0.0, 0, 0.5, 0.0)),
        ({"max_output_tokens": 7}, "max_tokens", 7),
        ({"model": "m"}, "model", "m"),
        ({"instructions": "Be brief."}, "messages", (Message(Role.SYSTEM, "Be brief."), Message(Role.USER, "a b"))),
        ({"parallel_tool_calls": False}, "parallel_tool_calls", False),
        ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice", "required"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "f"}}, "tool_choice", "tool:f"),
        ({"text": {"format": {"type": "text"}}}, "json_schema", None),
        ({"text": {"format": {"type": "json_object"}}}, "json_schema", {"type": "object"}),
        ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {"a": 1}}}}, "json_schema", {"a": 1}),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {}, "strict": True}}},
            "strict_schema",
            True,
        ),
        ({"akashic": {"session": "s.1"}}, "session", "s.1"),
    ],
)
def test_each_field_reaches_the_service(home: Path, fields: dict[str, Any], name: str, value: Any) -> None:
    assert getattr(asked(home, **fields), name) == value


CODEX: dict[str, Any] = {
    "model": "m", "instructions": "You are Codex.", "store": False, "stream": True, "tool_choice": "auto",
    "parallel_tool_calls": False, "prompt_cache_key": "0199-abc", "include": ["reasoning.encrypted_content"],
    "reasoning": {"effort": "medium", "summary": "auto"}, "client_metadata": {"x": "y"},
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions>"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "list it"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": "x"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Looking."}]},
        {"type": "function_call", "id": "fc_1", "name": "shell", "arguments": '{"cmd": ["ls"]}', "call_id": "c1"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "apply_patch", "input": "*** Begin"},
        {"type": "function_call_output", "call_id": "c1", "output": "a.txt"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "done"}]},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
    ],
    "tools": [
        {"type": "function", "name": "shell", "strict": False, "parameters": {"type": "object", "properties": {}}},
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
        {"type": "web_search", "external_web_access": True},
        {"type": "local_shell"}, {"type": "namespace", "name": "n", "tools": []},
    ],
}  # fmt: skip


def test_a_request_of_codex_is_answered_and_what_it_means_to_others_is_named(home: Path) -> None:
    service = EchoService(home)
    caller = post(service, CODEX)
    assert caller.status == 200
    assert header(caller, "x-akashic-ignored") == (
        "client_metadata, input[8] (web_search_call), reasoning.effort, reasoning.summary, tools[1].format (lark grammar), tools[2] (web_search), "
        "tools[3] (local_shell), tools[4] (namespace)"
    )
    request = service.requests[0]
    calls = (ToolCall("c1", "shell", '{"cmd": ["ls"]}'), ToolCall("c2", "apply_patch", '{"input":"*** Begin"}'))
    assert request.messages == (
        Message(Role.SYSTEM, "You are Codex."),
        Message(Role.SYSTEM, "<permissions>"),
        Message(Role.USER, "list it"),
        Message(Role.ASSISTANT, "Looking.", tool_calls=calls),
        Message(Role.TOOL, "a.txt", tool_call_id="c1"),
        Message(Role.TOOL, "done", tool_call_id="c2"),
    )
    assert [tool["function"]["name"] for tool in request.tools] == ["shell", "apply_patch"]
    events = events_of(caller)
    assert events[0]["type"] == "response.created"
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["usage"]["input_tokens_details"] == {"cached_tokens": 4, "cache_write_tokens": 3}


def test_the_items_of_a_turn_are_one_message_and_turns_stay_apart(home: Path) -> None:
    said = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "id": "r"},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": ""},
        {"type": "message", "role": "assistant", "content": "one"},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "user", "content": "x"},
    ]
    assert asked(home, input=said).messages == (
        Message(Role.ASSISTANT, "", thinking="hm", tool_calls=(ToolCall("c1", "f", ""),)),
        Message(Role.ASSISTANT, "one"),
        Message(Role.ASSISTANT, "no"),
        Message(Role.USER, "x"),
    )


def test_an_answer_repeats_what_was_asked_and_says_what_was_cached(home: Path) -> None:
    fields = {"instructions": "s", "metadata": {"k": "v"}, "tools": [TOOL], "max_output_tokens": 9, "temperature": 0.5}
    body = json.loads(post(EchoService(home), {**HELLO, **fields, "truncation": "auto"}).text)
    assert {name: body[name] for name in fields} == fields
    assert (body["object"], body["status"], body["error"], body["truncation"]) == (
        "response", "completed", None, "disabled",
    )  # fmt: skip
    assert body["usage"]["total_tokens"] == 9
    assert body["akashic"]["reused_tokens"] == 4
    (item,) = body["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    assert item["content"] == [{"type": "output_text", "text": "a b ", "annotations": [], "logprobs": []}]


def test_an_answer_that_was_cut_off_says_so(home: Path) -> None:
    for stream in (False, True):
        caller = post(scripted(home, [TextDelta("a", 1), finished("a", 1, "length")]), {**HELLO, "stream": stream})
        body = events_of(caller)[-1]["response"] if stream else json.loads(caller.text)
        assert body["status"] == "incomplete"
        assert body["incomplete_details"] == {"reason": "max_output_tokens"}
        assert [item["status"] for item in body["output"]] == ["incomplete"]


def test_a_call_that_was_cut_off_is_an_incomplete_item_after_complete_ones(home: Path) -> None:
    calls = (ToolCall("c1", "f", "{}"), ToolCall("c2", "f", '{"a'))
    script: list[GenerationEvent] = [
        TextDelta("", 1), ToolCallDelta(0, "{}", "c1", "f"), ToolCallDelta(1, '{"a', "c2", "f"),
        replace(finished("", 9, "length"), tool_calls=calls),
    ]  # fmt: skip
    for stream in (False, True):
        caller = post(scripted(home, script), {**HELLO, "stream": stream})
        body = events_of(caller)[-1]["response"] if stream else json.loads(caller.text)
        told = [(item["type"], item["arguments"], item["status"]) for item in body["output"]]
        assert told == [("function_call", "{}", "completed"), ("function_call", '{"a', "incomplete")]


PATCH = '*** Begin "Patch"\n+é\n'
CUSTOM: dict[str, Any] = {"tools": [TOOL, {"type": "custom", "name": "apply_patch"}]}


def test_a_call_of_a_custom_tool_is_an_item_with_its_input_and_streams_it(home: Path) -> None:
    arguments = json.dumps({"input": PATCH})
    calls = (ToolCall("c1", "f", "{}"), ToolCall("c2", "apply_patch", arguments))
    pieces = [ToolCallDelta(1, arguments[at : at + 3]) for at in range(0, len(arguments), 3)]
    script: list[GenerationEvent] = [
        ToolCallDelta(0, "{}", "c1", "f"), ToolCallDelta(1, "", "c2", "apply_patch"), *pieces,
        replace(finished("", 9, "tool_calls"), tool_calls=calls),
    ]  # fmt: skip
    whole = json.loads(post(scripted(home, script), {**HELLO, **CUSTOM}).text)
    events = events_of(post(scripted(home, script), {**HELLO, **CUSTOM, "stream": True}))
    for body in (whole, events[-1]["response"]):
        assert [item["type"] for item in body["output"]] == ["function_call", "custom_tool_call"]
        item = body["output"][1]
        assert (item["call_id"], item["name"], item["input"], item["status"]) == (
            "c2", "apply_patch", PATCH, "completed",
        )  # fmt: skip
        assert item["id"].startswith("ctc_")
    deltas = [event for event in events if event["type"] == "response.custom_tool_call_input.delta"]
    assert len(deltas) > 3
    assert "".join(event["delta"] for event in deltas) == PATCH
    (done,) = [event for event in events if event["type"] == "response.custom_tool_call_input.done"]
    assert (done["input"], done["item_id"], done["output_index"]) == (PATCH, item["id"], 1)


def test_a_custom_tool_can_be_asked_for_by_name_and_its_earlier_input_is_what_was_sampled(home: Path) -> None:
    choice = {"type": "custom", "name": "apply_patch"}
    assert asked(home, **CUSTOM, tool_choice=choice).tool_choice == "tool:apply_patch"
    said = [{"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": PATCH}]
    (message,) = asked(home, **CUSTOM, input=said).messages or ()
    assert json.loads(message.tool_calls[0].arguments) == {"input": PATCH}


class FailingService(EchoService):
    """Fails in mid-stream."""

    async def generate(self, request: GenerationInput) -> Any:
        async for event in super().generate(request):
            yield event
            if isinstance(event, TextDelta):
                raise AkashicError("broken")


def test_an_error_in_mid_stream_ends_it_as_failed(home: Path) -> None:
    events = events_of(post(FailingService(home), {**HELLO, "stream": True}))
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["status"] == "failed"
    assert events[-1]["response"]["error"] == {"code": "internal", "message": "broken"}


@pytest.mark.parametrize(
    "body",
    [
        {"store": False},
        {**HELLO, "input": []},
        {**HELLO, "input": [5]},
        {**HELLO, "input": [{"content": "x"}]},
        {**HELLO, "input": [{"type": "message", "role": "wizard", "content": "x"}]},
        {**HELLO, "input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        {**HELLO, "input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": {}}]},
        {**HELLO, "input": [{"type": "function_call_output", "output": "x"}]},
        {**HELLO, "input": [{"type": "item_reference", "id": "msg_1"}, {"role": "user", "content": "x"}]},
        {**HELLO, "conversation": "conv_1"},
        {**HELLO, "prompt": {"id": "pmpt_1"}},
        {**HELLO, "max_output_tokens": -1},
        {**HELLO, "max_output_tokens": 0},
        {**HELLO, "background": True},
        {**HELLO, "truncation": "maybe"},
        {**HELLO, "tools": ["f"]},
        {**HELLO, "tools": [{"type": "function"}]},
        {**HELLO, "tools": [{"type": "custom"}]},
        {**HELLO, "tools": [{"type": "custom", "name": ["x"]}]},
        {**HELLO, "tools": [{"type": "custom", "name": "f"}, TOOL]},
        {**HELLO, "tool_choice": {"type": "custom", "name": "f"}},
        {**HELLO, "tool_choice": "required"},
        {**HELLO, "tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}},
        {**HELLO, "text": {"format": {"type": "xml"}}},
        {**HELLO, "text": {"format": {"type": "json_schema", "name": "n"}}},
        b'{"input": "x", "temperature": NaN}',
        b'{"input": "\xff"}',
    ],
)
def test_a_body_that_means_nothing_is_refused_before_the_service_hears_of_it(
    home: Path, body: dict[str, Any] | bytes
) -> None:
    service = EchoService(home)
    caller = post(service, body)
    assert caller.status == 400, caller.text
    told = json.loads(caller.text)["error"]
    assert told["type"] == "invalid_request_error"
    assert told["message"]
    assert service.requests == []
