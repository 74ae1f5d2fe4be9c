"""Requests in the shapes in which coding agents send them: two turns with a tool, thoughts and all, on the fake engine.

The shapes are those of Claude Code 2.1, Codex 0.171, OpenCode 1.18 and aider 0.86, with short texts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import tool_templates
from akashic_daemon.api.app import create_app
from akashic_daemon.engine.fake import FakeEngine
from fake_service import running_service

CALL = '<tool_call>\n{"name": "Bash", "arguments": {"command": "ls"}}\n</tool_call>'
FIRST, SECOND = f"<think>\nI ponder.\n</think>\n\nLet me look.\n{CALL}", "<think>\nAh.\n</think>\n\nTwo files."
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
EPHEMERAL = {"cache_control": {"type": "ephemeral"}}
NEW_TOKENS = 400
"""At most so many tokens of the second prompt are new: the result, marks, and what the agent adds."""

Post = Callable[[str, dict[str, Any], dict[str, str]], Awaitable[httpx.Response]]


def replay(home: Path, work: Callable[[Post], Awaitable[None]]) -> None:
    """Run what an agent does, on an engine that thinks, calls a tool and answers."""

    async def run() -> None:
        engine = FakeEngine(kv_cells=1 << 16, window_tokens=16384, template=tool_templates.SHOWS_THOUGHTS)
        engine.scripts += [FIRST, SECOND]
        async with running_service(home, lambda _n, _p: engine) as service:
            transport = httpx.ASGITransport(create_app(service, token="t"), client=("127.0.0.1", 5))
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as client:

                async def post(path: str, body: dict[str, Any], headers: dict[str, str]) -> httpx.Response:
                    found = await client.post(path, json=body, headers=headers)
                    assert found.status_code == 200, found.text
                    return found

                await work(post)

    asyncio.run(run())


def events(found: httpx.Response) -> list[dict[str, Any]]:
    """Return the data of a stream's events."""
    lines = [line.removeprefix("data: ") for line in found.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def test_claude_codes_second_turn_computes_only_what_is_new_and_what_is_ignored_is_named(home: Path) -> None:
    headers = {
        "authorization": "Bearer t", "anthropic-version": "2023-06-01", "x-app": "cli",
        "user-agent": "claude-cli/2.1.197 (external, sdk-cli)", "x-claude-code-session-id": "c3cf1151",
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27,"
        "prompt-caching-scope-2026-01-05,mid-conversation-system-2026-04-07,effort-2025-11-24",
    }  # fmt: skip
    billing = "x-anthropic-billing-header: cc_version=2.1.197.{}; cc_entrypoint=sdk-cli;"
    body: dict[str, Any] = {
        "model": "fake", "max_tokens": 4000, "stream": True, "metadata": {"user_id": '{"session_id":"c3cf1151"}'},
        "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "system": [
            {"type": "text", "text": billing.format("99d")},
            {"type": "text", "text": "You are a Claude agent.", **EPHEMERAL},
            {"type": "text", "text": "You are an interactive agent. " * 20, **EPHEMERAL},
        ],
        "tools": [
            {"name": "Bash", "description": "Runs a command.", "input_schema": {"$schema": "x", **SCHEMA}},
            {"name": "Read", "description": "Reads.", "input_schema": {"type": "object", "properties": {}}},
        ],
        "messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "<system-reminder>\nToday is a day.\n</system-reminder>\n\n"},
                {"type": "text", "text": "What is here?", **EPHEMERAL},
            ]},
            {"role": "system", "content": "Available agent types: none"},
        ],
    }  # fmt: skip

    async def work(post: Post) -> None:
        first = events(await post("/v1/messages?beta=true", body, headers))
        starts = [e["content_block"]["type"] for e in first if e["type"] == "content_block_start"]
        assert starts == ["thinking", "text", "tool_use"]
        deltas: dict[str, str] = {}
        for delta in [e["delta"] for e in first if e["type"] == "content_block_delta"]:
            kind = delta.pop("type")
            deltas[kind] = deltas.get(kind, "") + next(iter(delta.values()))
        assert json.loads(deltas["input_json_delta"]) == {"command": "ls"}
        (call,) = [e["content_block"] for e in first if e["type"] == "content_block_start"][2:]
        signed = {"thinking": deltas["thinking_delta"], "signature": deltas["signature_delta"]}
        said = [
            {"type": "thinking", **signed},
            {"type": "text", "text": deltas["text_delta"]},
            {"type": "tool_use", "id": call["id"], "name": "Bash", "input": {"command": "ls"}},
        ]
        result = {"tool_use_id": call["id"], "type": "tool_result", "content": "a\nb", "is_error": False, **EPHEMERAL}
        system = [{"type": "text", "text": billing.format("01c")}, *body["system"][1:]]
        more = [{"role": "assistant", "content": said}, {"role": "user", "content": [result]}]
        found = await post(
            "/v1/messages?beta=true", {**body, "system": system, "messages": [*body["messages"], *more]}, headers
        )
        usage = events(found)[-2]["usage"]
        assert usage["cache_creation_input_tokens"] < NEW_TOKENS
        assert usage["input_tokens"] == 0
        assert usage["cache_read_input_tokens"] > 800
        assert found.headers["x-akashic-ignored"] == "context_management, output_config.effort"
        told = [e["delta"].get("text", "") for e in events(found) if e["type"] == "content_block_delta"]
        assert "".join(told) == "Two files."

    replay(home, work)


def test_codexs_second_turn_computes_only_what_is_new_and_what_is_ignored_is_named(home: Path) -> None:
    def message(role: str, text: str) -> dict[str, Any]:
        return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}

    headers = {"authorization": "Bearer t", "originator": "codex_exec", "session_id": "01a22d03"}
    inner = {"type": "function", "name": "spawn_agent", "strict": False, "parameters": SCHEMA}
    body: dict[str, Any] = {
        "model": "fake", "stream": True, "store": False, "tool_choice": "auto", "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "01a22d03",
        "client_metadata": {"turn_id": "01a2"},
        "tools": [
            {"type": "function", "name": "Bash", "description": "d", "strict": False, "parameters": SCHEMA},
            {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
            {"type": "namespace", "name": "multi_agent_v1", "description": "d", "tools": [inner]},
            {"type": "web_search", "external_web_access": False},
        ],
        "input": [
            message("developer", "You are Codex. " * 20),
            message("user", "<environment_context>\n  <shell>bash</shell>\n</environment_context>"),
            message("user", "What is here?"),
        ],
    }  # fmt: skip

    async def work(post: Post) -> None:
        first = events(await post("/v1/responses", body, headers))
        items = [event["item"] for event in first if event["type"] == "response.output_item.done"]
        assert [item["type"] for item in items] == ["reasoning", "message", "function_call"]
        sent_back = [{k: v for k, v in item.items() if k not in ("id", "status")} for item in items]
        sent_back[0].pop("content")  # versions of Codex send thoughts back in their opaque form only
        result = {"type": "function_call_output", "call_id": items[2]["call_id"], "output": "Output:\na\nb"}
        found = await post("/v1/responses", {**body, "input": [*body["input"], *sent_back, result]}, headers)
        ended = events(found)[-1]
        assert ended["type"] == "response.completed"
        assert ended["response"]["usage"]["input_tokens_details"]["cache_write_tokens"] < NEW_TOKENS
        assert ended["response"]["output"][-1]["content"][0]["text"] == "Two files."
        assert found.headers["x-akashic-ignored"] == (
            "client_metadata, reasoning.summary, tools[1].format (lark grammar), tools[2] (namespace), tools[3] (web_search)"
        )

    replay(home, work)


@pytest.mark.parametrize("keeps_thoughts", [True, False], ids=["opencode", "others"])
def test_the_second_turn_of_agents_of_chat_completions_computes_only_what_is_new(
    home: Path, keeps_thoughts: bool
) -> None:
    headers = {"authorization": "Bearer t"}
    body: dict[str, Any] = {
        "model": "fake", "max_tokens": 4000, "stream": True, "stream_options": {"include_usage": True},
        "tool_choice": "auto",
        "tools": [{"type": "function", "function": {"name": "Bash", "description": "d", "parameters": SCHEMA}}],
        "messages": [
            {"role": "system", "content": "You are an interactive CLI tool. " * 20},
            {"role": "user", "content": [{"type": "text", "text": "What is here?"}]},
        ],
    }  # fmt: skip

    async def work(post: Post) -> None:
        first = events(await post("/v1/chat/completions", body, headers))
        deltas = [choice["delta"] for event in first for choice in event["choices"]]
        calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
        text = "".join(delta.get("content") or "" for delta in deltas)
        thought = "".join(delta.get("reasoning_content") or "" for delta in deltas)
        assert (text, thought) == ("Let me look.", "I ponder.")
        arguments = "".join(call["function"]["arguments"] for call in calls)
        # The AI SDK writes arguments anew; aider and others send what they heard.
        shown = json.dumps(json.loads(arguments), separators=(",", ":")) if keeps_thoughts else arguments
        function = {"name": "Bash", "arguments": shown}
        said: dict[str, Any] = {
            "role": "assistant", "content": text, "tool_calls": [{"id": calls[0]["id"], "type": "function", "function": function}],
        }  # fmt: skip
        if keeps_thoughts:
            said["reasoning_content"] = thought
        result = {"role": "tool", "tool_call_id": calls[0]["id"], "content": "a\nb\n"}
        found = await post("/v1/chat/completions", {**body, "messages": [*body["messages"], said, result]}, headers)
        usage = events(found)[-1]["usage"]
        computed = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
        assert computed < NEW_TOKENS
        if keeps_thoughts:
            assert computed < len("<>\n<>tool\na\nb\n<>\n<>assistant\n") + 2
        assert "x-akashic-ignored" not in found.headers

    replay(home, work)
