"""What OpenAI-shaped requests ask for, and how answers look, over a service that echoes."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import served_app
from akashic_daemon.api import body as body_module
from akashic_daemon.api.app import create_app
from akashic_daemon.engine.base import SamplingParams
from akashic_daemon.schedule.events import GenerationInput
from echo_service import CHAT, Caller, EchoService, run
from served_app import header

HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "a b"}]}


def post(home: Path, body: Mapping[str, Any] | bytes, path: str = CHAT) -> tuple[Caller, EchoService]:
    service = EchoService(home)
    return served_app.post(service, body, path), service


def asked(home: Path, **fields: Any) -> GenerationInput:
    return served_app.asked(home, {**HELLO, **fields}, CHAT)


def test_without_fields_a_request_samples_as_openai_does(home: Path) -> None:
    request = asked(home)
    assert request.sampling == SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    assert request.max_tokens is None
    assert request.stop == ()


def test_null_asks_for_the_default(home: Path) -> None:
    names = ("temperature", "top_p", "n", "stream", "stop", "tools", "seed", "logit_bias", "stream_options", "akashic")
    assert asked(home, **dict.fromkeys(names)) == asked(home)


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({"temperature": 0}, "temperature", 0.0),
        ({"top_p": 0.5}, "top_p", 0.5),
        ({"top_k": 3}, "top_k", 3),
        ({"min_p": 0.1}, "min_p", 0.1),
        ({"seed": 5}, "seed", 5),
        ({"frequency_penalty": 0.5}, "frequency_penalty", 0.5),
        ({"presence_penalty": -0.5}, "presence_penalty", -0.5),
        ({"repeat_penalty": 1.2}, "repeat_penalty", 1.2),
        ({"repetition_penalty": 1.3}, "repeat_penalty", 1.3),
        ({"logit_bias": {"15": -100}}, "logit_bias", ((15, -100.0),)),
    ],
)
def test_each_sampling_field_reaches_the_sampler(home: Path, fields: dict[str, Any], name: str, value: Any) -> None:
    caller, service = post(home, {**HELLO, **fields})
    assert getattr(service.requests[0].sampling, name) == value
    assert header(caller, "x-akashic-ignored") is None


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({"stop": "x"}, "stop", ("x",)),
        ({"stop": ["x", "y"]}, "stop", ("x", "y")),
        ({"max_tokens": 3}, "max_tokens", 3),
        ({"max_completion_tokens": 4, "max_tokens": 3}, "max_tokens", 4),
        ({"model": "m"}, "model", "m"),
        ({"akashic": {"session": "s.1"}}, "session", "s.1"),
        ({"akashic": {"policy": "none"}}, "policy", "none"),
        ({"akashic": {"edit_reuse": "drop"}}, "edit_reuse", "drop"),
        ({"akashic": {"cache_ops": [{"op": "drop"}]}}, "cache_ops", ({"op": "drop"},)),
    ],
)
def test_each_other_field_reaches_the_service(home: Path, fields: dict[str, Any], name: str, value: Any) -> None:
    assert getattr(asked(home, **fields), name) == value


@pytest.mark.parametrize("named", [True, False])
def test_an_image_is_refused_with_the_models_name_and_its_place(home: Path, named: bool) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,x"}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "what is it?"}, image]}]
    caller, service = post(home, {"messages": messages, **({"model": "tiny"} if named else {})})
    said = json.loads(caller.text)["error"]["message"]
    assert caller.status == 400
    assert ("model tiny" if named else "model smollm2") in said
    assert "messages[0].content[1]" in said
    assert service.requests == []


def test_tools_of_unknown_kinds_are_left_out_and_named(home: Path) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    caller, service = post(home, {**HELLO, "tools": [{"type": "web_search"}, tool, {"type": "custom", "name": "g"}]})
    assert service.requests[0].tools == (tool,)
    assert header(caller, "x-akashic-ignored") == "tools[0] (web_search), tools[2] (custom)"


def test_ignored_fields_are_logged_once_and_their_header_stays_short(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "akashic.openai")
    many = {f"field{i}" * 20: i for i in range(2000)}

    async def check() -> None:
        service = EchoService(home)
        app = create_app(service, token=None)
        for fields in ({"zeta": 1}, {"zeta": 2}, many):
            caller = Caller(service, CHAT, [json.dumps({**HELLO, **fields}).encode()])
            await app(caller.scope, caller.receive, caller.send)
            assert len(header(caller, "x-akashic-ignored") or "") < 4000

    run(check)
    assert sum("zeta" in r.getMessage() for r in caplog.records) == 1


def test_the_log_names_the_request_and_never_its_words(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    post(home, {"messages": [{"role": "user", "content": "xyzzy"}], "zeta": "xyzzy"})
    assert "request req-1 ended" in caplog.text
    assert "xyzzy" not in caplog.text


@pytest.mark.parametrize("with_usage", [True, False])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_a_stream_ends_with_reason_block_and_usage_if_asked(home: Path, path: str, with_usage: bool) -> None:
    text = 'say "\n\u2028é\U0001f600'
    body = {**({"prompt": text} if path != CHAT else {"messages": [{"role": "user", "content": text}]}), "stream": True}
    caller, _ = post(home, {**body, "stream_options": {"include_usage": with_usage}}, path)
    *events, done, end = caller.text.split("\n\n")
    chunks = [json.loads(e.removeprefix("data: ")) for e in events]
    assert (done, end) == ("data: [DONE]", "")
    usage = chunks.pop() if with_usage else None
    last = chunks[-1]
    assert last["choices"][0]["finish_reason"] == "stop"
    assert last["akashic"]["reused_tokens"] == 4
    if usage is not None:
        assert usage["choices"] == []
        assert usage["akashic"] == last["akashic"]
        assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}
    said = [c["choices"][0].get("text") or c["choices"][0].get("delta", {}).get("content") or "" for c in chunks]
    assert "".join(said) == "".join(word + " " for word in text.split())
    if path == CHAT:
        assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert len({(c["id"], c["object"], c["model"]) for c in chunks}) == 1


BAD = {
    "utf16": json.dumps(HELLO).encode("utf-16"),
    "surrogate_bytes": b'{"messages": [{"role": "user", "content": "\xed\xa0\x80"}]}',
    "huge_integer": b'{"seed": ' + b"9" * 5000 + b"}",
    "session_name": b'{"messages": [{"role": "user", "content": "x"}], "akashic": {"session": "a/b"}}',
    "session_newline": b'{"messages": [{"role": "user", "content": "x"}], "akashic": {"session": "a\\n"}}',
    "surrogate_session": b'{"messages": [{"role": "user", "content": "x"}], "akashic": {"session": "\\ud800"}}',
    "bias_over_float": b'{"messages": [{"role": "user", "content": "x"}], "logit_bias": {"1": 1e300}}',
    "top_k_over_int32": b'{"messages": [{"role": "user", "content": "x"}], "top_k": 2147483648}',
    "many_stops": json.dumps({**HELLO, "stop": ["x"] * 257}).encode(),
    "function_without_name": b'{"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function"}]}',
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD)
def test_a_body_that_means_nothing_is_refused_before_the_service_hears_of_it(home: Path, body: bytes) -> None:
    caller, service = post(home, body)
    assert caller.status == 400
    assert json.loads(caller.text)["error"]["message"]
    assert service.requests == []


@pytest.mark.parametrize("announced", [b"101", b"9" * 20, b"9" * 5000, None])
def test_a_body_over_the_limit_is_a_413(home: Path, monkeypatch: pytest.MonkeyPatch, announced: bytes | None) -> None:
    monkeypatch.setattr(body_module, "BODY_LIMIT_BYTES", 100)

    async def check() -> None:
        service = EchoService(home)
        headers = [] if announced is None else [(b"content-length", announced)]
        caller = Caller(service, CHAT, [b"x" * 60, b"x" * (60 if announced is None else 1)], headers=headers)
        await create_app(service, token=None)(caller.scope, caller.receive, caller.send)
        assert caller.status == 413

    run(check)


def test_text_that_is_no_unicode_is_answered_in_valid_utf8(home: Path) -> None:
    caller, _ = post(home, b'{"prompt": "\\ud800"}', "/v1/completions")
    assert json.loads(caller.text)["choices"][0]["text"] == "\ufffd "
