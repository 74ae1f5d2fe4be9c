"""What Anthropic-shaped requests ask for, and how answers and errors look, over a service that echoes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import served_app
from akashic_daemon.api import stream as stream_module
from akashic_daemon.api.app import create_app
from akashic_daemon.engine.base import SamplingParams
from akashic_daemon.errors import AkashicError, Overloaded, PromptTooLong
from akashic_daemon.protocol.native import Reuse
from akashic_daemon.schedule.events import GenerationEvent, GenerationInput, Started, TextDelta, ToolCallDelta
from akashic_daemon.trajectory.message import Message, Role, ToolCall
from echo_service import Caller, EchoService, finished, run
from served_app import header, scripted

PATH = "/v1/messages"
HELLO: dict[str, Any] = {"max_tokens": 50, "messages": [{"role": "user", "content": "a b"}]}
TOOL = {"name": "f", "description": "d", "input_schema": {"type": "object", "properties": {"x": {"type": "string"}}}}


def post(service: EchoService, body: Mapping[str, Any] | bytes, path: str = PATH) -> Caller:
    return served_app.post(service, body, path)


def asked(home: Path, **fields: Any) -> GenerationInput:
    return served_app.asked(home, {**HELLO, **fields}, PATH)


def events_of(caller: Caller) -> list[tuple[str, dict[str, Any]]]:
    """Return the events of a stream as (name, data); each names itself twice, equally."""
    out = []
    for event in caller.text.split("\n\n")[:-1]:
        name, data = event.split("\n")
        out.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    assert all(name == data["type"] for name, data in out)
    return out


def test_without_fields_a_request_samples_as_anthropic_does(home: Path) -> None:
    request = asked(home)
    assert request.sampling == SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    assert (request.max_tokens, request.stop, request.tools, request.tool_choice) == (50, (), (), "auto")
    assert request.messages == (Message(Role.USER, "a b"),)


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({"stop_sequences": ["x", "y"]}, "stop", ("x", "y")),
        ({"model": "m"}, "model", "m"),
        ({"temperature": 0}, "sampling", SamplingParams(0.0, 0, 1.0, 0.0)),
        ({"top_p": 0.5, "top_k": 3}, "sampling", SamplingParams(1.0, 3, 0.5, 0.0)),
        ({"akashic": {"session": "s.1"}}, "session", "s.1"),
        ({"akashic": {"edit_reuse": "drop"}}, "edit_reuse", "drop"),
        ({"akashic": {"cache_ops": [{"op": "drop"}]}}, "cache_ops", ({"op": "drop"},)),
        ({"tools": [TOOL], "tool_choice": {"type": "any"}}, "tool_choice", "required"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "f"}}, "tool_choice", "tool:f"),
        ({"tool_choice": {"type": "none"}}, "tool_choice", "none"),
        ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}, "parallel_tool_calls", False),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"a": 1}}}}, "json_schema", {"a": 1}),
        ({"output_format": {"type": "json_schema", "schema": {"a": 1}}}, "json_schema", {"a": 1}),
    ],
)
def test_each_field_reaches_the_service(home: Path, fields: dict[str, Any], name: str, value: Any) -> None:
    assert getattr(asked(home, **fields), name) == value


def test_tools_become_functions_and_those_of_hosted_kinds_are_named(home: Path) -> None:
    service = EchoService(home)
    tools = [{"type": "web_search_20250305", "name": "w"}, {**TOOL, "cache_control": {"type": "ephemeral"}}]
    caller = post(service, {**HELLO, "tools": [*tools, {**TOOL, "name": "g", "defer_loading": True}]})
    schema = TOOL["input_schema"]
    assert service.requests[0].tools == tuple(
        {"type": "function", "function": {"name": name, "description": "d", "parameters": schema}} for name in "fg"
    )
    assert header(caller, "x-akashic-ignored") == "tools[0] (web_search_20250305), tools[2].defer_loading"


def test_what_means_nothing_here_is_named_in_a_header_and_metadata_is_not(home: Path) -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    body = {**HELLO, "thinking": thinking, "metadata": {"user_id": "u"}, "service_tier": "auto", "mcp_servers": []}
    body["output_config"] = {"effort": "low"}
    for path in (PATH, PATH + "/count_tokens"):
        service = EchoService(home)
        if path != PATH:
            body = {k: v for k, v in body.items() if k not in ("max_tokens", "metadata")}
            service = CountingService(home)
        caller = post(service, body, path)
        assert (
            header(caller, "x-akashic-ignored")
            == "mcp_servers, output_config.effort, service_tier, thinking.budget_tokens"
        )
    assert header(post(EchoService(home), {**HELLO, "thinking": {"type": "disabled"}}), "x-akashic-ignored") is None


class CountingService(EchoService):
    async def count_tokens(self, request: GenerationInput) -> int:
        return len(request.messages or ())


def test_the_query_and_headers_of_a_beta_client_change_nothing(home: Path) -> None:
    service = EchoService(home)
    headers = [(b"anthropic-version", b"2023-06-01"), (b"anthropic-beta", b"x-2025"), (b"x-api-key", b"k")]
    body: list[bytes | None] = [json.dumps(HELLO).encode()]
    caller = Caller(service, PATH, body, query_string=b"beta=true", headers=headers)

    async def check() -> None:
        await create_app(service, token=None)(caller.scope, caller.receive, caller.send)

    run(check)
    assert caller.status == 200
    assert header(caller, "x-akashic-ignored") is None


def test_a_message_says_how_it_ended_what_was_cached_and_which_request_it_was(home: Path) -> None:
    caller = post(EchoService(home), HELLO)
    body = json.loads(caller.text)
    assert (body["type"], body["role"], body["id"], body["model"]) == ("message", "assistant", "msg_req-1", "echo")
    assert body["content"] == [{"type": "text", "text": "a b "}]
    assert (body["stop_reason"], body["stop_sequence"]) == ("end_turn", None)
    assert body["usage"] == {
        "input_tokens": 3, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 4, "output_tokens": 2,
    }  # fmt: skip
    assert body["akashic"]["computed_tokens"] == 3
    assert (header(caller, "request-id") or "").startswith("req-")
    assert header(caller, "request-id") == header(caller, "x-request-id")


MARK = {"cache_control": {"type": "ephemeral"}}


@pytest.mark.parametrize(
    "marked",
    [
        MARK,
        {"system": [{"type": "text", "text": "s", **MARK}]},
        {"tools": [{**TOOL, **MARK}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", **MARK}]}]},
    ],
    ids=["top", "system", "tools", "messages"],
)
def test_what_a_marking_client_had_computed_counts_as_written_to_the_cache(home: Path, marked: dict[str, Any]) -> None:
    usage = json.loads(post(EchoService(home), {**HELLO, **marked}).text)["usage"]
    assert (usage["input_tokens"], usage["cache_creation_input_tokens"], usage["cache_read_input_tokens"]) == (0, 3, 4)


@pytest.mark.parametrize(
    ("end", "reason", "sequence"),
    [
        (finished("x", 1), "end_turn", None),
        (replace(finished("x", 1), stop_string="###"), "stop_sequence", "###"),
        (finished("x", 50, "length"), "max_tokens", None),
        (finished("x", 49, "length"), "model_context_window_exceeded", None),
        (finished("x", 1, "tool_calls"), "tool_use", None),
        (replace(finished("x", 1, "tool_calls"), stop_string="###"), "tool_use", None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_the_end_is_told_in_anthropics_words(
    home: Path, end: GenerationEvent, reason: str, sequence: str | None, stream: bool
) -> None:
    caller = post(scripted(home, [end]), {**HELLO, "stream": stream})
    told = events_of(caller)[-2][1]["delta"] if stream else json.loads(caller.text)
    assert (told["stop_reason"], told["stop_sequence"]) == (reason, sequence)


CALLS = (ToolCall("toolu_1", "f", '{"x": "é"}'), ToolCall("toolu_2", "g", ""))


def test_calls_are_blocks_with_their_input_as_an_object(home: Path) -> None:
    end = replace(finished("Look: ", 9, "tool_calls"), tool_calls=CALLS)
    content = json.loads(post(scripted(home, [end]), HELLO).text)["content"]
    assert content == [
        {"type": "text", "text": "Look: "},
        {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"x": "é"}},
        {"type": "tool_use", "id": "toolu_2", "name": "g", "input": {}},
    ]


@pytest.mark.parametrize("arguments", ['{"x": ', "[1]", "5"])
def test_arguments_that_are_no_object_are_shown_as_text_never_left_out(home: Path, arguments: str) -> None:
    end = replace(finished("", 9, "length"), tool_calls=(ToolCall("toolu_1", "f", arguments),))
    assert json.loads(post(scripted(home, [end]), HELLO).text)["content"] == [{"type": "text", "text": arguments}]


def test_a_stream_opens_and_closes_each_block_in_turn(home: Path) -> None:
    script: list[GenerationEvent] = [
        TextDelta("", 1), TextDelta("a", 1), TextDelta("b", 1), ToolCallDelta(0, "", "toolu_1", "f"), ToolCallDelta(0, '{"x": '),
        ToolCallDelta(0, '"é"}'), ToolCallDelta(1, "{}", "toolu_2", "g"), TextDelta("c", 1), finished("abc", 9),
    ]  # fmt: skip
    events = events_of(post(scripted(home, script), {**HELLO, "stream": True}))
    told = [(n, d.get("index"), d.get("content_block") or d.get("delta")) for n, d in events[1:-2]]
    start, delta, stop = "content_block_start", "content_block_delta", "content_block_stop"
    assert told == [
        (start, 0, {"type": "text", "text": ""}),
        (delta, 0, {"type": "text_delta", "text": "a"}),
        (delta, 0, {"type": "text_delta", "text": "b"}),
        (stop, 0, None),
        (start, 1, {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}),
        (delta, 1, {"type": "input_json_delta", "partial_json": '{"x": '}),
        (delta, 1, {"type": "input_json_delta", "partial_json": '"é"}'}),
        (stop, 1, None),
        (start, 2, {"type": "tool_use", "id": "toolu_2", "name": "g", "input": {}}),
        (delta, 2, {"type": "input_json_delta", "partial_json": "{}"}),
        (stop, 2, None),
        (start, 3, {"type": "text", "text": ""}),
        (delta, 3, {"type": "text_delta", "text": "c"}),
        (stop, 3, None),
    ]
    first, last = events[0][1]["message"], events[-2][1]
    assert [name for name, _ in (events[0], *events[-2:])] == ["message_start", "message_delta", "message_stop"]
    assert (first["content"], first["stop_reason"], first["usage"]["output_tokens"]) == ([], None, 0)
    assert last["usage"] == {**first["usage"], "output_tokens": 9}
    assert last["usage"]["cache_read_input_tokens"] == 4
    assert last["akashic"]["reused_tokens"] == 4


def test_an_empty_answer_has_no_blocks(home: Path) -> None:
    end = finished("", 0)
    assert json.loads(post(scripted(home, [end]), HELLO).text)["content"] == []
    events = events_of(post(scripted(home, [end]), {**HELLO, "stream": True}))
    assert [name for name, _ in events] == ["message_start", "message_delta", "message_stop"]


def test_silence_is_filled_with_pings_before_the_first_event_too(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "KEEPALIVE_S", 0.01)
    pinged = asyncio.Event()

    async def script() -> AsyncGenerator[GenerationEvent, None]:
        await pinged.wait()
        yield Started("req-1", "s", "echo", 7, Reuse())
        yield finished("", 0)

    async def check() -> None:
        service = EchoService(home, script)
        caller = Caller(service, PATH, [json.dumps({**HELLO, "stream": True}).encode()])
        task = asyncio.create_task(create_app(service, token=None)(caller.scope, caller.receive, caller.send))
        while "event: ping\n" not in caller.text:
            await asyncio.sleep(0)
        pinged.set()
        await task
        names = [name for name, _ in events_of(caller)]
        assert names[0] == "ping"
        assert [name for name in names if name != "ping"] == ["message_start", "message_delta", "message_stop"]

    run(check)


class FailingService(EchoService):
    """Fails in mid-stream, or before it begins."""

    def __init__(self, home: Path, error: Exception, *, late: bool) -> None:
        super().__init__(home)
        self._error, self._late = error, late

    async def generate(self, request: GenerationInput) -> Any:
        async for event in super().generate(request):
            if not self._late:
                raise self._error
            yield event
            if isinstance(event, TextDelta):
                raise self._error


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (Overloaded("full"), 529, "overloaded_error"),
        (PromptTooLong("long", n_prompt_tokens=9, n_ctx=8), 400, "invalid_request_error"),
        (AkashicError("broken"), 500, "api_error"),
        (ValueError("secret"), 500, "api_error"),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_errors_have_anthropics_shape_before_and_in_a_stream(
    home: Path, error: Exception, status: int, kind: str, late: bool
) -> None:
    caller = post(FailingService(home, error, late=late), {**HELLO, "stream": True})
    assert caller.status == (200 if late else status)
    body = events_of(caller)[-1][1] if late else json.loads(caller.text)
    assert body["type"] == "error"
    assert body["error"]["type"] == kind
    assert body["request_id"] == header(caller, "request-id")
    assert header(caller, "retry-after") == ("5" if caller.status == 529 else None)
    assert "secret" not in caller.text
    if isinstance(error, PromptTooLong):
        assert body["error"]["message"].startswith("prompt is too long: 9 tokens > 8 maximum")


BAD = {
    "no_messages": {"max_tokens": 1},
    "empty_messages": {"max_tokens": 1, "messages": []},
    "no_max_tokens": {"messages": HELLO["messages"]},
    "negative_max_tokens": {**HELLO, "max_tokens": -1},
    "zero_max_tokens": {**HELLO, "max_tokens": 0},
    "fractional_max_tokens": {**HELLO, "max_tokens": 1.5},
    "unknown_role": {**HELLO, "messages": [{"role": "wizard", "content": "x"}]},
    "message_is_text": {**HELLO, "messages": ["x"]},
    "content_is_missing": {**HELLO, "messages": [{"role": "user"}]},
    "block_without_type": {**HELLO, "messages": [{"role": "user", "content": [{"text": "x"}]}]},
    "text_is_number": {**HELLO, "messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
    "result_without_id": {**HELLO, "messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
    "system_is_number": {**HELLO, "system": 5},
    "tool_without_schema": {**HELLO, "tools": [{"name": "f"}]},
    "tool_without_name": {**HELLO, "tools": [{"input_schema": {}}]},
    "tool_is_text": {**HELLO, "tools": ["f"]},
    "choice_of_no_tool": {**HELLO, "tools": [TOOL], "tool_choice": {"type": "tool", "name": "nope"}},
    "choice_without_name": {**HELLO, "tools": [TOOL], "tool_choice": {"type": "tool"}},
    "any_of_no_tools": {**HELLO, "tool_choice": {"type": "any"}},
    "unknown_choice": {**HELLO, "tool_choice": {"type": "maybe"}},
    "hot": {**HELLO, "temperature": 11},
    "two_tools_of_one_name": {**HELLO, "tools": [TOOL, TOOL]},
    "many_tools": {**HELLO, "tools": [{**TOOL, "name": f"f{n}"} for n in range(1025)]},
    "many_stops": {**HELLO, "stop_sequences": [str(n) for n in range(257)]},
}
BAD_BYTES = {
    "nan": b'{"max_tokens": 5, "temperature": NaN, "messages": [{"role": "user", "content": "x"}]}',
    "utf16": json.dumps(HELLO).encode("utf-16"),
    "deep": b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep_input": b'{"max_tokens": 1, "messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", '
    b'"name": "b", "input": ' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}]}, 5]}",
    "list": b"[]",
    "nothing": b"",
}  # fmt: skip


@pytest.mark.parametrize("body", [*BAD.values(), *BAD_BYTES.values()], ids=[*BAD, *BAD_BYTES])
def test_a_body_that_means_nothing_is_refused_in_anthropics_shape(home: Path, body: dict[str, Any] | bytes) -> None:
    service = EchoService(home)
    caller = post(service, body)
    assert caller.status == 400, caller.text
    told = json.loads(caller.text)
    assert (told["type"], told["error"]["type"]) == ("error", "invalid_request_error")
    assert told["error"]["message"]
    assert service.requests == []


def test_a_trailing_assistant_message_is_gone_on_with_but_not_one_that_calls(home: Path) -> None:
    messages = [*HELLO["messages"], {"role": "assistant", "content": "{"}]
    assert not asked(home).continue_final
    assert asked(home, messages=messages).continue_final
    assert asked(home, messages=messages).notes == ()
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    calling = asked(home, messages=[*HELLO["messages"], {"role": "assistant", "content": [call]}])
    assert not calling.continue_final
    assert "taken as complete" in calling.notes[0]


@pytest.mark.parametrize(
    ("thinking", "think"),
    [(None, None), ({"type": "disabled"}, False), ({"type": "adaptive"}, True), ({"type": "enabled"}, True)],
)
def test_whether_to_think_reaches_the_service(home: Path, thinking: Any, think: bool | None) -> None:
    assert asked(home, thinking=thinking).think is think


def test_an_image_is_refused_with_the_models_name_and_its_place(home: Path) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [image]}
    for content, place in (([image], "content[0]"), ([result], "content[0].content[0]")):
        caller = post(EchoService(home), {**HELLO, "model": "tiny", "messages": [{"role": "user", "content": content}]})
        message = json.loads(caller.text)["error"]["message"]
        assert caller.status == 400
        assert "messages[0]." + place in message
        assert "image" in message
        assert "model tiny" in message
