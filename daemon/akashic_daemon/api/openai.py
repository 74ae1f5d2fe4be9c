"""OpenAI's routes: what a request asks for, as a `GenerationInput`. How answers look is `openai_answer`'s affair."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from akashic_daemon.api.anthropic_answer import ANTHROPIC_HEADER, model_entry, models_page
from akashic_daemon.api.app_state import service_of
from akashic_daemon.api.body import parse, read_json
from akashic_daemon.api.border import dump, json_response, wire_error
from akashic_daemon.api.ending import collect
from akashic_daemon.api.fields import extension_fields, ignored_header, without_nulls
from akashic_daemon.api.openai_answer import chunks, whole
from akashic_daemon.api.openai_tools import choice_of, function_tools, schema_of
from akashic_daemon.api.stream import CLIENT_CLOSED, EventStream, as_ours, until_gone
from akashic_daemon.engine.base import SamplingParams
from akashic_daemon.errors import BadRequest, NotFound, Unsupported
from akashic_daemon.protocol.openai import MOST_STOPS, ChatCompletionRequest, SamplingFields
from akashic_daemon.schedule.events import GenerationInput
from akashic_daemon.service import Service
from akashic_daemon.trajectory.message import Message
from akashic_daemon.transcript.openai_messages import messages_from_openai


def routes() -> list[Route]:
    """Return the routes of chats and models."""
    return [
        Route("/v1/models", list_models, methods=["GET"]),
        Route("/v1/models/{name:path}", get_model, methods=["GET"]),
        Route("/v1/chat/completions", chat_completions, methods=["POST"]),
    ]


async def _models(service: Service) -> list[dict[str, Any]]:
    known: list[tuple[str, int | None]] = [(m.name, m.window_tokens) for m in (await service.list_models()).models]
    known += [(name, None) for name in service.embeddings.names()]
    return [
        {"id": name, "object": "model", "created": 0, "owned_by": "akashic", "max_model_len": window}
        for name, window in known
    ]


async def list_models(request: Request) -> Response:
    """Answer with the registered models and their usable windows (null where the file doesn't tell); loads none."""
    known = await _models(service_of(request))
    if ANTHROPIC_HEADER in request.headers:
        return json_response(models_page([m["id"] for m in known]))
    return json_response({"object": "list", "data": known})


async def get_model(request: Request) -> Response:
    """Answer with one model, without loading it."""
    name = request.path_params["name"]
    known = await _models(service_of(request))
    for model in known:
        if model["id"] == name:
            return json_response(model_entry(name) if ANTHROPIC_HEADER in request.headers else model)
    raise NotFound(f"there is no model {name!r}", hint=f"known: {', '.join(m['id'] for m in known) or 'none'}")


async def chat_completions(request: Request) -> Response:
    """Answer a chat request."""
    body = parse(ChatCompletionRequest, without_nulls(await read_json(request)))
    tools, ignored = function_tools(body.tools or [])
    schema, strict = schema_of(body.response_format)
    think, unknown = _thinking(body)
    generation = GenerationInput(
        messages=_messages(body, service_of(request)),
        tools=tools,
        tool_choice=choice_of(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls,
        json_schema=schema,
        strict_schema=strict,
        think=think,
        continue_final=_continues(body),
        max_tokens=body.max_completion_tokens or body.max_tokens,
        **shared_fields(body),
    )
    service = service_of(request)
    headers = ignored_header(request, sorted([*(body.model_extra or ()), *ignored, *unknown]))
    if body.stream:
        usage = body.stream_options is not None and body.stream_options.include_usage
        return EventStream(  # type: ignore[return-value]  # an ASGI app, as Starlette allows
            chunks(service, generation, with_usage=usage),
            media_type="text/event-stream",
            keepalive=b": still working\n\n",
            on_error=lambda error: b"data: " + dump(wire_error("/v1/", as_ours(error))) + b"\n\n",
            headers=headers,
        )
    ended = await until_gone(request.receive, collect(service, generation))
    if ended is None:
        return Response(status_code=CLIENT_CLOSED)
    return json_response(whole(*ended), headers=headers)


def _thinking(body: ChatCompletionRequest) -> tuple[bool | None, list[str]]:
    """Return whether the model is to think, None when nothing is said of it, and what else is said and means nothing."""
    wishes = dict(body.chat_template_kwargs)
    asked = [wish for name in ("enable_thinking", "thinking") if isinstance(wish := wishes.pop(name, None), bool)]
    unknown = [f"chat_template_kwargs.{name}" for name in wishes]
    if body.reasoning_effort == "none":
        asked.append(False)
    elif body.reasoning_effort is not None:
        unknown.append("reasoning_effort")
    return (asked[0] if asked else None), unknown


def _continues(body: ChatCompletionRequest) -> bool:
    """Tell if the last message is to be gone on with. Raises BadRequest for flags that contradict each other."""
    if body.continue_final_message and body.add_generation_prompt:
        raise BadRequest(
            "fields 'continue_final_message' and 'add_generation_prompt' are both true",
            hint="an answer is either begun or continued: leave one out",
            param="add_generation_prompt",
        )
    if body.add_generation_prompt is False and not body.continue_final_message:
        raise BadRequest(
            "field 'add_generation_prompt' is false, so nobody's turn would begin",
            hint="send continue_final_message: true to have the last message continued",
            param="add_generation_prompt",
        )
    return body.continue_final_message


def _messages(body: ChatCompletionRequest, service: Service) -> tuple[Message, ...]:
    try:
        return tuple(messages_from_openai(body.messages))
    except Unsupported as error:
        model = body.model or service.settings.config.model.default
        raise Unsupported(f"asking the model {model}: {error.message}", hint=error.hint) from error


def shared_fields(body: SamplingFields) -> dict[str, Any]:
    """Return what every request for text says, as fields of `GenerationInput`."""
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    if len(stop) > MOST_STOPS:
        raise BadRequest(f"field 'stop' has {len(stop)} strings, more than {MOST_STOPS}", param="stop")
    return {
        "sampling": SamplingParams(
            temperature=body.temperature,
            top_k=body.top_k,
            top_p=body.top_p,
            min_p=body.min_p,
            seed=body.seed,
            repeat_penalty=body.repeat_penalty,
            frequency_penalty=body.frequency_penalty,
            presence_penalty=body.presence_penalty,
            logit_bias=tuple((body.logit_bias or {}).items()),
        ),
        "stop": stop,
        "model": body.model,
        **extension_fields(body.akashic),
        "drop_message": body.drop_message,
        "reposition": None if body.reposition is None else tuple(body.reposition),
        "drop_rule": body.drop_rule,
    }
