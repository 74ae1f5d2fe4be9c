"""What is counted before a request is what its prompt has, with everything that a prompt can hold, in each API that counts."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import httpx
import pytest

import tool_templates
from akashic_daemon.api.app import create_app
from akashic_daemon.engine.fake import FakeEngine
from fake_service import running_service

TEMPLATES = ("HERMES", "TAGS", "LLAMA", "NO_TOOL_ROLE", "THINKING", "DEEPSEEK", "SHOWS_THOUGHTS", "HARMONY")
WORDS = ("hello", "ünïcode", "🙂", "a  b", "{}", "</tool_call>", "<|im_end|>", "\n\n", "1.5", "\u200d", "x" * 40)
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}}


def text(dice: random.Random) -> str:
    return " ".join(dice.choice(WORDS) for _ in range(dice.randint(1, 6)))


def tool(dice: random.Random, name: str) -> dict[str, Any]:
    return {"name": name, "description": text(dice), "input_schema": SCHEMA}


def turn(dice: random.Random, number: int) -> list[dict[str, Any]]:
    """Return a question, a thought, two calls, their results, and an answer."""
    calls = [
        {"type": "tool_use", "id": f"t{number}_{n}", "name": "look", "input": {"a": text(dice), "b": n}}
        for n in range(2)
    ]
    results = [
        {"type": "tool_result", "tool_use_id": call["id"], "content": text(dice), "is_error": dice.random() < 0.3}
        for call in calls
    ]
    thought = {"type": "thinking", "thinking": text(dice), "signature": "s"}
    return [
        {"role": "user", "content": [{"type": "text", "text": text(dice), "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [thought, {"type": "text", "text": text(dice)}, *calls[: dice.randint(0, 2)]]},
        {"role": "user", "content": results[: dice.randint(1, 2)]},
        {"role": "assistant", "content": [{"type": "text", "text": text(dice)}]},
    ]


def request(dice: random.Random) -> dict[str, Any]:
    """Return a request of Anthropic's API that holds something of everything."""
    said: list[dict[str, Any]] = []
    for number in range(dice.randint(0, 3)):
        said += turn(dice, number)
    said.append({"role": "user", "content": text(dice)})
    if dice.random() < 0.2:
        said.append({"role": "assistant", "content": "I begin"})
    out: dict[str, Any] = {"model": "fake", "messages": said}
    if dice.random() < 0.7:
        out["system"] = [{"type": "text", "text": text(dice)}, {"type": "text", "text": text(dice)}]
    if dice.random() < 0.8:
        out["tools"] = [tool(dice, "look"), tool(dice, "add"), {"type": "web_search_20250305", "name": "web_search"}]
        out["tool_choice"] = dice.choice([{"type": kind} for kind in ("auto", "any", "none")])
    if dice.random() < 0.6:
        out["thinking"] = dice.choice([{"type": "disabled"}, {"type": "enabled", "budget_tokens": 1024}])
    return out


def as_items(sent: dict[str, Any]) -> dict[str, Any]:
    """Return about the same as a request of the Responses API."""
    items: list[dict[str, Any]] = []
    for message in sent["messages"]:
        content = message["content"]
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            if block["type"] == "text":
                items.append({"role": message["role"], "content": block["text"]})
            elif block["type"] == "thinking":
                items.append({"type": "reasoning", "summary": [{"type": "summary_text", "text": block["thinking"]}]})
            elif block["type"] == "tool_use":
                items.append({"type": "function_call", "call_id": block["id"], "name": "look", "arguments": '{"a": 1}'})
            else:
                output = {"call_id": block["tool_use_id"], "output": block["content"]}
                items.append({"type": "function_call_output", **output})
    out: dict[str, Any] = {"model": "fake", "input": items, "instructions": "Be brief."}
    for made in sent.get("tools", ()):
        named = {"type": "function", "name": made["name"], "parameters": SCHEMA}
        out.setdefault("tools", []).append(named if "input_schema" in made else {"type": "web_search"})
    if sent.get("thinking") == {"type": "disabled"}:
        out["reasoning"] = {"effort": "none"}
    return out


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_request_has_as_many_tokens_as_were_counted(home: Path, name: str) -> None:
    async def run() -> None:
        engine = FakeEngine(kv_cells=1 << 16, window_tokens=1 << 14, template=getattr(tool_templates, name))
        async with running_service(home, lambda _n, _p: engine) as service:
            transport = httpx.ASGITransport(create_app(service, token=None), client=("127.0.0.1", 5))
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:1") as client:

                async def post(path: str, body: dict[str, Any]) -> Any:
                    answer = await client.post(path, json=body)
                    assert answer.status_code == 200, answer.text
                    return answer.json()

                for seed in range(4):
                    sent = request(random.Random(f"{name}{seed}"))
                    counted = (await post("/v1/messages/count_tokens", sent))["input_tokens"]
                    used = (await post("/v1/messages", {**sent, "max_tokens": 2}))["usage"]
                    parts = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
                    assert sum(used[part] for part in parts) == counted, (seed, sent)
                    items = as_items(sent)
                    counted = (await post("/v1/responses/input_tokens", items))["input_tokens"]
                    used = (await post("/v1/responses", {**items, "max_output_tokens": 2}))["usage"]
                    assert used["input_tokens"] == counted, (seed, items)

    asyncio.run(asyncio.wait_for(run(), 300))
