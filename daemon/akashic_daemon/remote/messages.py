"""Requests as OpenAI-compatible servers read them: the same history always gives the same bytes, longer ones go on from them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from akashic_daemon.engine.base import SamplingParams
from akashic_daemon.schedule.events import NAMED_TOOL, GenerationInput
from akashic_daemon.trajectory.message import Message, Role

_NEUTRAL = SamplingParams()


def body_of(request: GenerationInput, messages: Sequence[Message], model: str) -> dict[str, Any]:
    """Return the body of a chat request, its prefix first; only what the request sets otherwise than we do is sent on."""
    body: dict[str, Any] = {"model": model}
    if request.tools:
        body["tools"] = list(request.tools)
    body["messages"] = [message_body(m) for m in messages]
    if request.tools and request.tool_choice != "auto":
        body["tool_choice"] = _tool_choice(request.tool_choice)
    if request.tools and not request.parallel_tool_calls:
        body["parallel_tool_calls"] = False
    if request.json_schema is not None:
        schema = {"name": "answer", "schema": request.json_schema, "strict": request.strict_schema}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    if request.think is not None:
        body["chat_template_kwargs"] = {"enable_thinking": request.think}
    if request.continue_final:
        body.update(continue_final_message=True, add_generation_prompt=False)
    return body | sampling_body(request)


def text_body(request: GenerationInput, model: str) -> dict[str, Any]:
    """Return the body of a completion of bare text."""
    return {"model": model, "prompt": request.text or ""} | sampling_body(request)


def sampling_body(request: GenerationInput) -> dict[str, Any]:
    """Return how the answer is sampled and where it ends."""
    sampling = request.sampling
    out: dict[str, Any] = {
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": sampling.temperature,
    }
    for name in ("top_k", "top_p", "min_p", "seed", "frequency_penalty", "presence_penalty", "repeat_penalty"):
        value = getattr(sampling, name)
        if value != getattr(_NEUTRAL, name):
            out["repetition_penalty" if name == "repeat_penalty" else name] = value
    if sampling.logit_bias:
        out["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias}
    if request.max_tokens is not None:
        out["max_tokens"] = request.max_tokens
    if request.stop:
        out["stop"] = list(request.stop)
    return out


def message_body(message: Message) -> dict[str, Any]:
    """Return one message. Reasoning goes along in the field that llama-server and vLLM read; others pass over it."""
    out: dict[str, Any] = {"role": message.role.value, "content": message.content}
    if message.thinking:
        out["reasoning_content"] = message.thinking
    if message.tool_calls:
        out["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in message.tool_calls
        ]
    if message.role is Role.TOOL and message.tool_call_id is not None:
        out["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        out["name"] = message.name
    return out


def encoded(body: Mapping[str, Any]) -> bytes:
    """Return a body's bytes: keys as they stand, nothing between them."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _tool_choice(choice: str) -> Any:
    if choice.startswith(NAMED_TOOL):
        return {"type": "function", "function": {"name": choice.removeprefix(NAMED_TOOL)}}
    return choice
