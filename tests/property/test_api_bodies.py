"""Bodies that only look like requests: every API answers them or refuses them in its own shape, and never fails."""

from __future__ import annotations

import asyncio
import copy
import json
import random
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from akashic_daemon.api.app import create_app
from akashic_daemon.response_service import ResponseService
from akashic_daemon.schedule.events import GenerationInput
from echo_service import Caller, EchoService

MARK = {"cache_control": {"type": "ephemeral"}}
SCHEMA = {"type": "object", "properties": {"x": {"type": "string"}}}
MESSAGES: dict[str, Any] = {
    "model": "m", "max_tokens": 5, "system": [{"type": "text", "text": "s", **MARK}], "stop_sequences": ["x"],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "t", "signature": "x"},
            {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "r", "is_error": False}]},
    ],
    "tools": [{"name": "f", "input_schema": SCHEMA}], "tool_choice": {"type": "tool", "name": "f"},
    "thinking": {"type": "enabled", "budget_tokens": 5}, "metadata": {"user_id": "u"}, "temperature": 1,
    "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}, "akashic": {"session": "s"},
}  # fmt: skip
RESPONSES: dict[str, Any] = {
    "model": "m", "max_output_tokens": 5, "instructions": "s", "store": True, "previous_response_id": "r",
    "input": [
        {"role": "user", "content": "a"},
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "t"}], "content": [], "id": "r"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "a"}]},
        {"type": "web_search_call", "id": "w"},
    ],
    "tools": [{"type": "function", "name": "f", "parameters": SCHEMA, "strict": True}, {"type": "web_search"}],
    "tool_choice": {"type": "function", "name": "f"}, "reasoning": {"effort": "low"}, "include": ["x"],
    "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}, "verbosity": "low"},
    "truncation": "auto", "metadata": {"a": "b"}, "parallel_tool_calls": True, "temperature": 1,
}  # fmt: skip
COMPLETIONS: dict[str, Any] = {"model": "m", "prompt": ["a", "b"], "echo": True, "stop": ["x"], "max_tokens": 5}
CHAT: dict[str, Any] = {
    "model": "m", "messages": MESSAGES["messages"][:1], "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "auto", "response_format": {"type": "json_object"},
}  # fmt: skip
BODIES = {
    "/v1/messages": MESSAGES,
    "/v1/messages/count_tokens": {k: v for k, v in MESSAGES.items() if k not in ("max_tokens", "stop_sequences")},
    "/v1/responses": RESPONSES,
    "/v1/responses/input_tokens": {k: v for k, v in RESPONSES.items() if k not in ("max_output_tokens", "store")},
    "/v1/completions": COMPLETIONS,
    "/v1/chat/completions": CHAT,
}
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2**63, 1e308, "", "auto", "x" * 300, "\ud800", "\x00", [], {}, [[]], [None], {"": {}},
    {"type": "text"}, {"type": "image"}, [{"type": "text", "text": 5}], {"role": "user"}, "text", "function", -0.5,
]  # fmt: skip


class Kept(ResponseService):
    """Keeps nothing, but what it is given must be JSON."""

    def __init__(self) -> None:
        pass

    async def keep(self, body: dict[str, Any], *, items: list[Any], previous: str | None, session: str | None) -> None:
        json.dumps([body, items, previous, session])

    async def history(self, response_id: str) -> list[Any]:
        return [{"role": "user", "content": response_id}]


class Counting(EchoService):
    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.responses = Kept()

    async def count_tokens(self, request: GenerationInput) -> int:
        return len(request.messages or ())


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return every (container, key) of a body."""
    found: list[tuple[Any, Any]] = []
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    for key in keys:
        found.append((value, key))
        found += places(value[key])
    return found


def mutated(body: dict[str, Any], seed: int) -> dict[str, Any]:
    dice = random.Random(seed)
    out = copy.deepcopy(body)
    for _ in range(dice.randint(1, 3)):
        container, key = dice.choice(places(out))
        if dice.random() < 0.3:
            del container[key]
        elif dice.random() < 0.2 and isinstance(container, dict):
            container[str(dice.choice(ODD))[:50]] = copy.deepcopy(dice.choice(ODD))
        else:
            container[key] = copy.deepcopy(dice.choice(ODD))
        if not out:
            break
    return out


async def answered(path: str, body: bytes) -> Caller:
    with tempfile.TemporaryDirectory(prefix="ak-") as home:
        service = Counting(Path(home))
        caller = Caller(service, path, [body])
        await create_app(service, token=None)(caller.scope, caller.receive, caller.send)
    return caller


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(BODIES)), st.integers(0, 2**32), st.booleans())
def test_a_mutated_request_is_answered_or_refused_in_its_apis_shape(path: str, seed: int, stream: bool) -> None:
    body = mutated(BODIES[path], seed)
    if stream and not path.endswith("_tokens"):
        body["stream"] = True
    caller = asyncio.run(answered(path, json.dumps(body).encode()))
    assert caller.status in (200, 400), (body, caller.text)
    assert all(len(value) < 4000 for _, value in caller.sent[0]["headers"])
    if caller.status == 400:
        told = json.loads(caller.text)
        assert (told.get("type") == "error") == path.startswith("/v1/messages")
        assert told["error"]["type"] == "invalid_request_error"
        assert 0 < len(told["error"]["message"]) < 2000


def test_the_bodies_themselves_are_answered() -> None:
    for path, body in BODIES.items():
        caller = asyncio.run(answered(path, json.dumps(body).encode()))
        assert caller.status == 200, (path, caller.text)


@given(st.sampled_from(sorted(BODIES)), st.sampled_from(["tools", "metadata", "zeta"]), st.integers(150, 1200))
@settings(max_examples=30, deadline=None)
def test_nesting_is_answered_or_refused_however_deep_it_is(path: str, field: str, levels: int) -> None:
    body = {k: v for k, v in BODIES[path].items() if k not in ("tool_choice", field)}
    deep = '{"a":' * levels + "1" + "}" * levels
    given = {"tools": f'[{{"type": "hosted", "x": {deep}}}]'}.get(field, deep)
    text = json.dumps(body)[:-1] + f', "{field}": {given}}}'
    caller = asyncio.run(answered(path, text.encode()))
    assert caller.status == (400 if levels > 200 else caller.status)
    assert caller.status in (200, 400), caller.text[:500]
