"""How an answer looks in OpenAI's Responses API: one object, or its events; `usage` and our `akashic` block are always there.

A response is stored before its client learns that it is complete: what `previous_response_id` names can be found.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from akashic_daemon.api.border import dump
from akashic_daemon.api.ending import akashic_block, check_complete
from akashic_daemon.api.responses_output import Kind, Output, part_of
from akashic_daemon.api.stream import as_ours
from akashic_daemon.protocol.responses import ResponseRequest
from akashic_daemon.schedule.events import Finished, GenerationInput, Started, TextDelta, ThinkingDelta, ToolCallDelta
from akashic_daemon.service import Service

_DELTA_NAMES = {"call": "response.function_call_arguments.delta", "custom": "response.custom_tool_call_input.delta"}


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request said, for its answer: the body, its input as items, and the names of its custom tools."""

    body: ResponseRequest
    items: list[Any]
    custom: frozenset[str] = frozenset()


class Answer:
    """The answer of one request, as an object or a stream of events."""

    def __init__(self, service: Service, asked: Asked) -> None:
        self._service = service
        self._asked = asked
        self._id = "resp_" + uuid.uuid4().hex
        self._created_s = int(time.time())
        self._model = asked.body.model or ""
        self._number = -1
        sealed = "reasoning.encrypted_content" in (asked.body.include or ())
        self._output = Output(self._id, sealed=sealed, custom=asked.custom)

    async def whole(self, started: Started, finished: Finished) -> dict[str, Any]:
        """Return the answer of a request that doesn't stream."""
        self._model = started.model
        if finished.thinking is not None:
            self._output.begin("reasoning")
            self._output.text += finished.thinking
            self._output.end()
        if finished.text:
            self._output.begin("text")
            self._output.text += finished.text
        for index, call in enumerate(finished.tool_calls):
            self._output.end()
            self._output.begin_call(ToolCallDelta(index, "", call.id, call.name))
            self._output.add(call.arguments)
        self._output.end(_status(finished))
        return await self._complete(finished)

    async def events(self, generation: GenerationInput) -> AsyncIterator[bytes]:
        """Stream an answer as server-sent events."""
        async with aclosing(self._service.generate(generation)) as source:
            started: Started | None = None
            async for event in source:
                if isinstance(event, TextDelta):
                    if event.text:
                        yield self._text("text", event.text)
                elif isinstance(event, ThinkingDelta):
                    yield self._text("reasoning", event.text)
                elif isinstance(event, ToolCallDelta):
                    yield self._call(event)
                elif isinstance(event, Started):
                    started, self._model = event, event.model
                    body = self._response("in_progress")
                    yield self._event("response.created", response=body)
                    yield self._event("response.in_progress", response=body)
                elif isinstance(event, Finished):
                    assert started is not None, "Started is always the first event"
                    check_complete(started, event)
                    closing = self._end_item(_status(event))
                    body = await self._complete(event)
                    yield closing + self._event(f"response.{body['status']}", response=body)

    def failed(self, error: Exception) -> bytes:
        """Return the event that tells of an error in mid-stream."""
        ours = as_ours(error)
        body = self._response("failed", error={"code": ours.code, "message": str(ours)})
        return self._event("response.failed", response=body)

    async def _complete(self, finished: Finished) -> dict[str, Any]:
        status = _status(finished)
        body = self._response(
            status,
            incomplete_details={"reason": "max_output_tokens"} if status == "incomplete" else None,
            usage=_usage(finished),
            akashic=akashic_block(finished),
        )
        asked = self._asked.body
        if asked.store:
            await self._service.responses.keep(
                body, items=self._asked.items, previous=asked.previous_response_id, session=finished.reuse.session
            )
        return body

    # -- events ------------------------------------------------------------------------------------------------

    def _text(self, kind: Kind, text: str) -> bytes:
        output, out = self._output, b""
        if output.kind != kind:
            out = self._end_item()
            output.begin(kind)
            out += self._event("response.output_item.added", output_index=output.index, item=output.item("in_progress"))
            out += self._event("response.content_part.added", **output.place(content=True), part=part_of(kind, ""))
        output.text += text
        place = output.place(content=True)
        if kind == "reasoning":
            return out + self._event("response.reasoning_text.delta", **place, delta=text)
        return out + self._event("response.output_text.delta", **place, delta=text, logprobs=[])

    def _call(self, delta: ToolCallDelta) -> bytes:
        output, out = self._output, b""
        if output.call_index != delta.index:
            out = self._end_item()
            output.begin_call(delta)
            out += self._event("response.output_item.added", output_index=output.index, item=output.item("in_progress"))
        told = output.add(delta.arguments)
        return out + self._event(_DELTA_NAMES[output.kind or "call"], **output.place(), delta=told) if told else out

    def _end_item(self, status: str = "completed") -> bytes:
        """Close the open item, if there is one."""
        output = self._output
        if output.kind is None:
            return b""
        if output.kind == "call":
            done = {"name": output.name, "arguments": output.text}
            out = self._event("response.function_call_arguments.done", **output.place(), **done)
        elif output.kind == "custom":
            rest = output.end_input()
            out = self._event(_DELTA_NAMES["custom"], **output.place(), delta=rest) if rest else b""
            out += self._event("response.custom_tool_call_input.done", **output.place(), input=output.text)
        else:
            place = output.place(content=True)
            if output.kind == "reasoning":
                out = self._event("response.reasoning_text.done", **place, text=output.text)
            else:
                out = self._event("response.output_text.done", **place, text=output.text, logprobs=[])
            out += self._event("response.content_part.done", **place, part=part_of(output.kind, output.text))
        index = output.index
        return out + self._event("response.output_item.done", output_index=index, item=output.end(status))

    def _event(self, name: str, /, **data: Any) -> bytes:
        self._number += 1
        body = {"type": name, "sequence_number": self._number, **data}
        return b"event: " + name.encode() + b"\ndata: " + dump(body) + b"\n\n"

    def _response(self, status: str, **more: Any) -> dict[str, Any]:
        asked = self._asked.body
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created_s,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "metadata": asked.metadata or {},
            "model": self._model,
            "output": list(self._output.items),
            "parallel_tool_calls": asked.parallel_tool_calls,
            "previous_response_id": asked.previous_response_id,
            "store": asked.store,
            "temperature": asked.temperature,
            "text": {"format": (asked.text.format if asked.text else None) or {"type": "text"}},
            "tool_choice": asked.tool_choice or "auto",
            "tools": asked.tools,
            "top_p": asked.top_p,
            "truncation": "disabled",
            "usage": None,
            **more,
        }


def _status(finished: Finished) -> str:
    return "incomplete" if finished.finish_reason == "length" else "completed"


def _usage(finished: Finished) -> dict[str, Any]:
    written = finished.prompt_tokens - finished.reuse.reused_tokens
    return {
        "input_tokens": finished.prompt_tokens,
        "input_tokens_details": {"cached_tokens": finished.reuse.reused_tokens, "cache_write_tokens": written},
        "output_tokens": finished.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": finished.thinking_tokens},
        "total_tokens": finished.prompt_tokens + finished.completion_tokens,
    }
