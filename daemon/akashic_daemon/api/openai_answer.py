"""How an answer looks in OpenAI's chat API: one object, or chunks; `usage` and our `akashic` block are always there."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from akashic_daemon.api.border import dump
from akashic_daemon.api.ending import akashic_block, check_complete
from akashic_daemon.schedule.events import Finished, GenerationInput, Started, TextDelta, ThinkingDelta, ToolCallDelta
from akashic_daemon.service import Service


def whole(started: Started, finished: Finished) -> dict[str, Any]:
    """Return the answer of a request that doesn't stream."""
    choice = {
        "index": 0,
        "message": _message(finished),
        "finish_reason": finished.finish_reason,
        "logprobs": None,
    }
    head = _head(started, "chat.completion")
    return {**head, "choices": [choice], "usage": usage_of(finished), "akashic": akashic_block(finished)}


async def chunks(service: Service, generation: GenerationInput, *, with_usage: bool) -> AsyncIterator[bytes]:
    """Stream an answer as server-sent events.

    What is equal in all chunks is written once; a token costs the JSON of its text and two joins.
    """
    head = before = after = b""
    started: Started | None = None
    async with aclosing(service.generate(generation)) as events:
        async for event in events:
            if isinstance(event, TextDelta):
                yield before + dump(event.text) + after
            elif isinstance(event, ToolCallDelta):
                choice = {"index": 0, "delta": {"tool_calls": [_call_delta(event)]}, "finish_reason": None}
                yield head + dump(choice) + b"]}\n\n"
            elif isinstance(event, ThinkingDelta):
                choice = {"index": 0, "delta": {"reasoning_content": event.text}, "finish_reason": None}
                yield head + dump(choice) + b"]}\n\n"
            elif isinstance(event, Started):
                started = event
                head = b"data: " + dump(_head(event, "chat.completion.chunk"))[:-1] + b',"choices":['
                before = head + b'{"index":0,"delta":{"content":'
                after = b'},"finish_reason":null}]}\n\n'
                role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
                yield head + dump(role) + b"]}\n\n"
            elif isinstance(event, Finished):
                assert started is not None, "Started is always the first event"
                check_complete(started, event)
                yield _last_chunks(head, event, with_usage=with_usage)


def _message(finished: Finished) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": finished.text}
    if finished.thinking is not None:
        message["reasoning_content"] = finished.thinking
    if finished.tool_calls:
        message["content"] = finished.text or None
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in finished.tool_calls
        ]
    return message


def _call_delta(event: ToolCallDelta) -> dict[str, Any]:
    function: dict[str, Any] = {"arguments": event.arguments}
    if event.name is None:
        return {"index": event.index, "function": function}
    return {"index": event.index, "id": event.id, "type": "function", "function": {"name": event.name, **function}}


def _last_chunks(head: bytes, finished: Finished, *, with_usage: bool) -> bytes:
    choice = dump({"index": 0, "delta": {}, "finish_reason": finished.finish_reason})
    block = b'],"akashic":' + dump(akashic_block(finished))
    out = head + choice + block + b"}\n\n"
    if with_usage:
        out += head + block + b',"usage":' + dump(usage_of(finished)) + b"}\n\n"
    return out + b"data: [DONE]\n\n"


def usage_of(finished: Finished) -> dict[str, Any]:
    """Return the tokens of a request, as OpenAI counts them."""
    return {
        "prompt_tokens": finished.prompt_tokens,
        "completion_tokens": finished.completion_tokens,
        "total_tokens": finished.prompt_tokens + finished.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": finished.reuse.reused_tokens},
        "completion_tokens_details": {"reasoning_tokens": finished.thinking_tokens},
        "drop_skipped_tokens": finished.reuse.drop_skipped_tokens,
        "repos_tokens": finished.reuse.reposed_tokens,
    }


def _head(started: Started, kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-" + started.request, "object": kind, "created": int(time.time()), "model": started.model}
