"""Anthropic's routes: what a request asks for, as a `GenerationInput`. How answers look is `anthropic_answer`'s affair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from akashic_daemon.api.anthropic_answer import PING, events, failed, whole
from akashic_daemon.api.app_state import service_of
from akashic_daemon.api.body import parse, read_json
from akashic_daemon.api.border import json_response
from akashic_daemon.api.ending import collect
from akashic_daemon.api.fields import (
    check_count,
    checked_choice,
    extension_fields,
    ignored_header,
    notes_on,
    without_nulls,
)
from akashic_daemon.api.stream import CLIENT_CLOSED, EventStream, until_gone
from akashic_daemon.engine.base import SamplingParams
from akashic_daemon.errors import BadRequest
from akashic_daemon.protocol.anthropic import CountTokensRequest, MessagesRequest, ToolChoice
from akashic_daemon.schedule.events import NAMED_TOOL, GenerationInput
from akashic_daemon.service import Service
from akashic_daemon.trajectory.message import Role
from akashic_daemon.transcript.anthropic_messages import messages_from_anthropic

_TOOL_FIELDS = frozenset({"type", "name", "description", "input_schema", "strict", "cache_control"})
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def routes() -> list[Route]:
    """Return the routes below /v1/messages."""
    return [
        Route("/v1/messages", messages, methods=["POST"]),
        Route("/v1/messages/count_tokens", count_tokens, methods=["POST"]),
    ]


async def messages(request: Request) -> Response:
    """Answer a conversation."""
    service = service_of(request)
    raw = without_nulls(await read_json(request))
    body = parse(MessagesRequest, raw)
    shared, ignored = _shared(service, body)
    generation = GenerationInput(
        sampling=SamplingParams(temperature=body.temperature, top_k=body.top_k, top_p=body.top_p, min_p=0.0),
        max_tokens=body.max_tokens,
        stop=tuple(body.stop_sequences),
        **shared,
    )
    headers = ignored_header(request, ignored)
    marked = has_cache_marks(raw)
    if body.stream:
        return EventStream(  # type: ignore[return-value]  # an ASGI app, as Starlette allows
            events(service, generation, marked=marked),
            media_type="text/event-stream",
            keepalive=PING,
            on_error=failed,
            headers=headers,
        )
    ended = await until_gone(request.receive, collect(service, generation))
    if ended is None:
        return Response(status_code=CLIENT_CLOSED)
    return json_response(whole(*ended, generation, marked=marked), headers=headers)


async def count_tokens(request: Request) -> Response:
    """Answer with the number of tokens that a request's prompt has; nothing is computed."""
    service = service_of(request)
    body = parse(CountTokensRequest, without_nulls(await read_json(request)))
    shared, ignored = _shared(service, body)
    count = await service.count_tokens(GenerationInput(**shared))
    return json_response({"input_tokens": count}, headers=ignored_header(request, ignored))


def _shared(service: Service, body: CountTokensRequest) -> tuple[dict[str, Any], list[str]]:
    """Return what both routes read, as fields of `GenerationInput`, and the names of what is ignored."""
    model = body.model or service.settings.config.model.default
    tools, ignored = _function_tools(body.tools)
    choice = body.tool_choice or ToolChoice(type="auto")
    form = body.output_format or (body.output_config.format if body.output_config else None)
    ignored += [f"thinking.{name}" for name in body.thinking or () if name != "type"]
    if body.output_config is not None:
        ignored += [f"output_config.{name}" for name in body.output_config.model_extra or ()]
    said = tuple(messages_from_anthropic(body.system, body.messages, model=model))
    continued = said[-1].role is Role.ASSISTANT and not said[-1].tool_calls
    fields = {
        "messages": said,
        "tools": tools,
        "model": body.model,
        "tool_choice": checked_choice(_choice(choice), tools),
        "parallel_tool_calls": not choice.disable_parallel_tool_use,
        "json_schema": None if form is None else form.json_schema,
        "strict_schema": form is not None,
        "think": None if body.thinking is None else body.thinking.get("type") != "disabled",
        "continue_final": continued,
        "notes": () if continued else notes_on(said),
        **extension_fields(body.akashic),
    }
    return fields, sorted([*(body.model_extra or ()), *ignored])


def _choice(choice: ToolChoice) -> str:
    if choice.type != "tool":
        return _CHOICES[choice.type]
    if choice.name is None:
        raise BadRequest("field 'tool_choice.name' is missing", hint="name the tool", param="tool_choice.name")
    return NAMED_TOOL + choice.name


def _function_tools(tools: Sequence[Any]) -> tuple[tuple[dict[str, Any], ...], list[str]]:
    """Return the client's tools as functions that a template can show, and names of what is left out."""
    functions: list[dict[str, Any]] = []
    ignored: list[str] = []
    names: set[str] = set()
    check_count(tools)
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        if not isinstance(tool, dict):
            raise BadRequest(f"field {where!r} is no object", hint="send tools as objects", param=where)
        kind = tool.get("type") or "custom"
        if kind != "custom":
            ignored.append(f"{where} ({kind})")
            continue
        ignored += [f"{where}.{name}" for name in tool if name not in _TOOL_FIELDS]
        function = _function(tool, where)
        if function["name"] in names:
            raise BadRequest(f"two tools are named {function['name']!r}"[:200], hint="rename one", param=where)
        names.add(function["name"])
        functions.append({"type": "function", "function": function})
    return tuple(functions), ignored


def _function(tool: dict[str, Any], where: str) -> dict[str, Any]:
    name, schema, description = tool.get("name"), tool.get("input_schema"), tool.get("description")
    if not isinstance(name, str) or not name:
        raise BadRequest(f"field '{where}.name' is missing or no text", hint="name the tool", param=f"{where}.name")
    if not isinstance(schema, dict):
        place = f"{where}.input_schema"
        raise BadRequest(f"field {place!r} is missing or no object", hint="send a JSON schema", param=place)
    out: dict[str, Any] = {"name": name}
    if isinstance(description, str):
        out["description"] = description
    out["parameters"] = schema
    if isinstance(tool.get("strict"), bool):
        out["strict"] = tool["strict"]
    return out


def has_cache_marks(raw: dict[str, Any]) -> bool:
    """Tell if a request marks something for the cache. Looks where marks may stand, not into tools' inputs."""
    if "cache_control" in raw:
        return True
    places = [raw.get("tools"), raw.get("system"), *(m.get("content") for m in raw["messages"] if isinstance(m, dict))]
    for blocks in places:
        for block in blocks if isinstance(blocks, list) else ():
            if isinstance(block, dict) and block.get("cache_control") is not None:
                return True
    return False
