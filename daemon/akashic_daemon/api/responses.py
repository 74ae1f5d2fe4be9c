"""Routes of OpenAI's Responses API: what a request asks for, as a `GenerationInput`, and stored responses.

How answers look is `responses_answer`'s affair. Nothing is truncated: a history that doesn't fit is refused with counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from akashic_daemon.api.app_state import service_of
from akashic_daemon.api.body import parse, read_json
from akashic_daemon.api.border import json_response
from akashic_daemon.api.ending import collect
from akashic_daemon.api.fields import checked_choice, extension_fields, ignored_header, notes_on, without_nulls
from akashic_daemon.api.openai_tools import choice_of, function_tools, schema_of
from akashic_daemon.api.responses_answer import Answer, Asked
from akashic_daemon.api.stream import CLIENT_CLOSED, EventStream, until_gone
from akashic_daemon.engine.base import SamplingParams
from akashic_daemon.errors import BadRequest, Unsupported
from akashic_daemon.protocol.responses import CountInputRequest, ResponseRequest
from akashic_daemon.schedule.events import GenerationInput
from akashic_daemon.service import Service
from akashic_daemon.toolcalls.custom import as_function
from akashic_daemon.transcript.responses_items import messages_from_items

_TOOL_FIELDS = ("name", "description", "parameters", "strict")


def routes() -> list[Route]:
    """Return the routes below /v1/responses."""
    return [
        Route("/v1/responses", create, methods=["POST"]),
        Route("/v1/responses/input_tokens", count_input, methods=["POST"]),
        Route("/v1/responses/{id}", retrieve, methods=["GET"]),
        Route("/v1/responses/{id}", delete, methods=["DELETE"]),
        Route("/v1/responses/{id}/input_items", input_items, methods=["GET"]),
    ]


async def create(request: Request) -> Response:
    """Answer, and store the response unless told not to."""
    service = service_of(request)
    body = parse(ResponseRequest, without_nulls(await read_json(request)))
    shared, ignored = await _shared(service, body)
    custom = frozenset(tool["name"] for tool in body.tools if tool.get("type") == "custom")
    generation = GenerationInput(
        sampling=SamplingParams(temperature=body.temperature, top_p=body.top_p, top_k=0, min_p=0.0),
        max_tokens=body.max_output_tokens,
        **shared,
    )
    answer = Answer(service, Asked(body, _items(body), custom))
    headers = ignored_header(request, ignored)
    if body.stream:
        return EventStream(  # type: ignore[return-value]  # an ASGI app, as Starlette allows
            answer.events(generation),
            media_type="text/event-stream",
            keepalive=b": still working\n\n",
            on_error=answer.failed,
            headers=headers,
        )
    ended = await until_gone(request.receive, _whole(service, answer, generation))
    if ended is None:
        return Response(status_code=CLIENT_CLOSED)
    return json_response(ended, headers=headers)


async def _whole(service: Service, answer: Answer, generation: GenerationInput) -> dict[str, Any]:
    return await answer.whole(*await collect(service, generation))


async def count_input(request: Request) -> Response:
    """Answer with the number of tokens that a request's prompt has; nothing is computed."""
    service = service_of(request)
    body = parse(CountInputRequest, without_nulls(await read_json(request)))
    shared, ignored = await _shared(service, body)
    count = await service.count_tokens(GenerationInput(**shared))
    headers = ignored_header(request, ignored)
    return json_response({"object": "response.input_tokens", "input_tokens": count}, headers=headers)


async def retrieve(request: Request) -> Response:
    """Answer with a stored response."""
    service = service_of(request)
    return json_response((await service.responses.get(request.path_params["id"])).body)


async def delete(request: Request) -> Response:
    """Delete a stored response. Its session stays; `DELETE /akashic/v1/sessions/…` removes that with its responses."""
    service = service_of(request)
    name = request.path_params["id"]
    await service.responses.remove(name)
    return json_response({"id": name, "object": "response", "deleted": True})


async def input_items(request: Request) -> Response:
    """Answer with the items that a stored response's request sent, newest first as OpenAI does unless asked otherwise."""
    service = service_of(request)
    stored = await service.responses.get(request.path_params["id"])
    named = [_with_id(item, f"{stored.id}_{index}") for index, item in enumerate(stored.items)]
    order = request.query_params.get("order", "desc")
    if order not in ("asc", "desc"):
        raise BadRequest(f"order is {order!r}", hint="asc gives the oldest first, desc the newest", param="order")
    if order == "desc":
        named.reverse()
    ends = {"first_id": named[0]["id"], "last_id": named[-1]["id"]} if named else {"first_id": None, "last_id": None}
    return json_response({"object": "list", "data": named, **ends, "has_more": False})


def _with_id(item: Any, name: str) -> dict[str, Any]:
    return {"id": name, "type": "message", **item} if isinstance(item, dict) else {"id": name, "item": item}


def _items(body: CountInputRequest) -> list[Any]:
    """Return the input as items: a text is the user's message."""
    if isinstance(body.input, list):
        return body.input
    return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": body.input}]}]


async def _shared(service: Service, body: CountInputRequest) -> tuple[dict[str, Any], list[str]]:
    """Return what both routes read, as fields of `GenerationInput`, and the names of what is ignored."""
    _check_all_is_here(body)
    items = _items(body)
    before = [] if body.previous_response_id is None else await service.responses.history(body.previous_response_id)
    model = body.model or service.settings.config.model.default
    old, _ = messages_from_items(body.instructions, before, model=model)
    new, left_out = messages_from_items(None, items, model=model)
    if not (old or new):
        raise BadRequest("field 'input' is empty", hint="send a text or items", param="input")
    shown, free = _as_chat_tools(body.tools)
    tools, hosted = function_tools(shown)
    text = body.text.model_extra or {} if body.text is not None else {}
    ignored = [*left_out, *hosted, *free, *(f"text.{name}" for name in text), *(body.model_extra or ())]
    reasoning = dict(body.reasoning or {})
    think = False if reasoning.get("effort") == "none" and reasoning.pop("effort") else None
    ignored += [f"reasoning.{name}" for name in reasoning]
    if body.truncation == "auto":
        ignored.append("truncation")
    schema, strict = schema_of(_as_chat_format(body.text.format if body.text is not None else None))
    fields = {
        "messages": (*old, *new),
        "tools": tools,
        "model": body.model,
        "tool_choice": checked_choice(choice_of(_as_chat_choice(body.tool_choice)), tools),
        "parallel_tool_calls": body.parallel_tool_calls,
        "json_schema": schema,
        "strict_schema": strict,
        "think": think,
        "notes": notes_on((*old, *new)),
        **extension_fields(body.akashic),
    }
    return fields, sorted(ignored)


def _check_all_is_here(body: CountInputRequest) -> None:
    """Raise Unsupported for a request whose text lies elsewhere: left out, the model would be asked something else."""
    for name, value in (("conversation", body.conversation), ("prompt", body.prompt)):
        if value is not None:
            raise Unsupported(
                f"field {name!r} names what only OpenAI's own servers keep",
                hint="send the text itself, or what came before by previous_response_id",
                param=name,
            )


def _as_chat_tools(tools: Sequence[Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return tools as chat requests have them, and what of custom tools' formats the model is only told.

    A function's fields are an object of their own there; a custom tool is a function of one text.
    """
    out: list[dict[str, Any]] = []
    free: list[str] = []
    for index, tool in enumerate(tools):
        if not isinstance(tool, dict):
            raise BadRequest(f"field 'tools[{index}]' is no object", hint="send tools as objects", param="tools")
        if tool.get("type") == "custom":
            shown, told = as_function(tool, f"tools[{index}]")
            out.append(shown)
            free += [told] if told is not None else []
        elif tool.get("type", "function") != "function" or "function" in tool:
            out.append(tool)
        else:
            function = {name: tool[name] for name in _TOOL_FIELDS if tool.get(name) is not None}
            out.append({"type": "function", "function": function})
    return out, free


def _as_chat_choice(choice: str | Mapping[str, Any] | None) -> str | Mapping[str, Any] | None:
    if isinstance(choice, Mapping) and choice.get("type") == "custom":
        return {**choice, "type": "function"}
    return choice


def _as_chat_format(form: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if form is None or form.get("type") != "json_schema" or "json_schema" in form:
        return form
    return {"type": "json_schema", "json_schema": {key: value for key, value in form.items() if key != "type"}}
