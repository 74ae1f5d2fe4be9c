"""Rich bodies of each API, odd values, and mutations of the one by the other: for tests of what is not quite a request."""

from __future__ import annotations

import copy
import random
from typing import Any

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
