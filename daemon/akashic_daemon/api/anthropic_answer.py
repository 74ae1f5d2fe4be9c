"""How an answer looks in Anthropic's API: one message, or events; `usage` and our `akashic` block are always there.

Anthropic counts a prompt in three parts. What was reused is `cache_read_input_tokens`. The rest was computed, and all
of it stays in the cache: it is `cache_creation_input_tokens` for clients that mark what to cache, else `input_tokens`.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

from akashic_daemon.api.border import dump, wire_error
from akashic_daemon.api.ending import akashic_block, check_complete
from akashic_daemon.api.stream import as_ours
from akashic_daemon.protocol.native import Reuse
from akashic_daemon.schedule.events import Finished, GenerationInput, Started, TextDelta, ThinkingDelta, ToolCallDelta
from akashic_daemon.service import Service
from akashic_daemon.trajectory.message import ToolCall

logger = logging.getLogger("akashic.anthropic")
ANTHROPIC_HEADER = "anthropic-version"
"""Anthropic's clients send it with every request; by it they are known where both APIs have one path."""
PING = b'event: ping\ndata: {"type":"ping"}\n\n'


def models_page(names: Sequence[str]) -> dict[str, Any]:
    """Return the list of models: one page."""
    data = [model_entry(name) for name in names]
    ends = {"first_id": names[0] if names else None, "last_id": names[-1] if names else None}
    return {"data": data, "has_more": False, **ends}


def model_entry(name: str) -> dict[str, Any]:
    """Return a model as an entry of that list; when it was made, its file doesn't tell."""
    never = "1970-01-01T00:00:00Z"
    return {"type": "model", "id": name, "display_name": name, "created_at": never, "lifecycle": "active"}


def failed(error: Exception) -> bytes:
    """Return the event that tells of an error in mid-stream."""
    return _event("error", wire_error("/v1/messages", as_ours(error)))


def whole(started: Started, finished: Finished, generation: GenerationInput, *, marked: bool) -> dict[str, Any]:
    """Return the answer of a request that doesn't stream."""
    content: list[dict[str, Any]] = []
    if finished.thinking is not None:
        signed = {"thinking": finished.thinking, "signature": _signature(finished.thinking)}
        content.append({"type": "thinking", **signed})
    content += [{"type": "text", "text": finished.text}] if finished.text else []
    content += [_called(call) for call in finished.tool_calls]
    usage = _usage(finished.prompt_tokens, finished.reuse, finished.completion_tokens, marked=marked)
    ending = _ending(finished, generation)
    return {**_head(started), "content": content, **ending, "usage": usage, "akashic": akashic_block(finished)}


async def events(service: Service, generation: GenerationInput, *, marked: bool) -> AsyncIterator[bytes]:
    """Stream an answer as server-sent events."""
    blocks = _Blocks()
    started: Started | None = None
    async with aclosing(service.generate(generation)) as source:
        async for event in source:
            if isinstance(event, TextDelta):
                if event.text:
                    yield blocks.text(event.text)
            elif isinstance(event, ToolCallDelta):
                yield blocks.call(event)
            elif isinstance(event, ThinkingDelta):
                yield blocks.thinking(event.text)
            elif isinstance(event, Started):
                started = event
                usage = _usage(event.prompt_tokens, event.reuse, 0, marked=marked)
                empty: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
                yield _event("message_start", {"type": "message_start", "message": {**_head(event), **empty}})
            elif isinstance(event, Finished):
                assert started is not None, "Started is always the first event"
                check_complete(started, event)
                yield blocks.end() + _last_events(event, generation, marked=marked)


def _last_events(finished: Finished, generation: GenerationInput, *, marked: bool) -> bytes:
    usage = _usage(finished.prompt_tokens, finished.reuse, finished.completion_tokens, marked=marked)
    last = {
        "type": "message_delta",
        "delta": _ending(finished, generation),
        "usage": usage,
        "akashic": akashic_block(finished),
    }
    return _event("message_delta", last) + _event("message_stop", {"type": "message_stop"})


class _Blocks:
    """Words the content blocks of a stream: one is open at a time, and their numbers rise."""

    def __init__(self) -> None:
        self._index = -1
        self._open: str | int | None = None  # "text", "thinking", or the index of a call
        self._before = b""
        self._thought = ""

    def text(self, text: str) -> bytes:
        out = b""
        if self._open != "text":
            out = self._begin("text", {"type": "text", "text": ""}, b'{"type":"text_delta","text":')
        return out + self._before + dump(text) + b"}}\n\n"

    def thinking(self, text: str) -> bytes:
        out = b""
        if self._open != "thinking":
            block = {"type": "thinking", "thinking": "", "signature": ""}
            out = self._begin("thinking", block, b'{"type":"thinking_delta","thinking":')
        self._thought += text
        return out + self._before + dump(text) + b"}}\n\n"

    def call(self, delta: ToolCallDelta) -> bytes:
        out = b""
        if self._open != delta.index:
            block: dict[str, Any] = {"type": "tool_use", "id": delta.id, "name": delta.name, "input": {}}
            out = self._begin(delta.index, block, b'{"type":"input_json_delta","partial_json":')
        if not delta.arguments:
            return out
        return out + self._before + dump(delta.arguments) + b"}}\n\n"

    def end(self) -> bytes:
        if self._open is None:
            return b""
        signed = b""
        if self._open == "thinking":
            delta = {"type": "signature_delta", "signature": _signature(self._thought)}
            signed = _event(
                "content_block_delta", {"type": "content_block_delta", "index": self._index, "delta": delta}
            )
        self._open = None
        return signed + _event("content_block_stop", {"type": "content_block_stop", "index": self._index})

    def _begin(self, what: str | int, block: dict[str, Any], delta: bytes) -> bytes:
        out = self.end()
        self._open = what
        self._index += 1
        start = b'data: {"type":"content_block_delta","index":%d,"delta":' % self._index
        self._before = b"event: content_block_delta\n" + start + delta
        opening = {"type": "content_block_start", "index": self._index, "content_block": block}
        return out + _event("content_block_start", opening)


def _event(name: str, data: dict[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + dump(data) + b"\n\n"


def _head(started: Started) -> dict[str, Any]:
    return {"id": "msg_" + started.request, "type": "message", "role": "assistant", "model": started.model}


def _signature(thought: str) -> str:
    """Return a signature; clients send thoughts back only with one, and it isn't looked at then."""
    return hashlib.blake2b(thought.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _called(call: ToolCall) -> dict[str, Any]:
    """Return a call as a block. `input` is an object in this API: what is none is shown as the text that it is."""
    try:
        arguments = json.loads(call.arguments or "{}")
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        logger.warning("a call's arguments are no JSON object; they are shown as text")
        return {"type": "text", "text": call.arguments}
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}


def _ending(finished: Finished, generation: GenerationInput) -> dict[str, Any]:
    reason = {"length": "max_tokens", "tool_calls": "tool_use"}.get(finished.finish_reason, "end_turn")
    if reason == "tool_use":
        return {"stop_reason": reason, "stop_sequence": None}  # clients run the calls of no other end
    if finished.stop_string is not None:
        reason = "stop_sequence"
    elif reason == "max_tokens" and finished.completion_tokens < (generation.max_tokens or 0):
        reason = "model_context_window_exceeded"
    return {"stop_reason": reason, "stop_sequence": finished.stop_string}


def _usage(prompt_tokens: int, reuse: Reuse, output_tokens: int, *, marked: bool) -> dict[str, Any]:
    rest = prompt_tokens - reuse.reused_tokens
    return {
        "input_tokens": 0 if marked else rest,
        "cache_creation_input_tokens": rest if marked else 0,
        "cache_read_input_tokens": reuse.reused_tokens,
        "output_tokens": output_tokens,
    }
