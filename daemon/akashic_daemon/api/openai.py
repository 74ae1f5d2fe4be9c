"""OpenAI's chat and text completions, with usage and our `akashic` block always there."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from akashic_daemon.api.body import parse, read_json
from akashic_daemon.api.border import dump, wire_error
from akashic_daemon.api.stream import EventStream, until_gone
from akashic_daemon.engine.base import SamplingParams
from akashic_daemon.errors import AkashicError, BadRequest, Unsupported
from akashic_daemon.protocol.openai import ChatCompletionRequest, CompletionRequest
from akashic_daemon.schedule.events import Finished, GenerationInput, Started, TextDelta
from akashic_daemon.service import Service
from akashic_daemon.transcript.openai_messages import messages_from_openai

logger = logging.getLogger("akashic.openai")
_CLIENT_CLOSED = 499


def routes() -> list[Route]:
    """Return the routes below /v1."""
    return [
        Route("/v1/models", list_models, methods=["GET"]),
        Route("/v1/chat/completions", chat_completions, methods=["POST"]),
        Route("/v1/completions", completions, methods=["POST"]),
    ]


async def list_models(request: Request) -> Response:
    """Answer with the registered models; the loaded one says its usable window."""
    service: Service = request.app.state.service
    known = await service.list_models()
    engine = (await service.status()).engine
    data = [
        {
            "id": m.name,
            "object": "model",
            "created": 0,
            "owned_by": "akashic",
            **({"max_model_len": engine.window_tokens} if m.loaded and engine.window_tokens else {}),
        }
        for m in known.models
    ]
    return JSONResponse({"object": "list", "data": data})


async def chat_completions(request: Request) -> Response:
    """Answer a chat request."""
    data = await read_json(request)
    body = parse(ChatCompletionRequest, data)
    generation = GenerationInput(
        messages=tuple(messages_from_openai(body.messages)),
        tools=tuple(body.tools or ()),
        max_tokens=body.max_completion_tokens or body.max_tokens,
        **_shared(body),
    )
    return await _answer(request, body, generation, chat=True)


async def completions(request: Request) -> Response:
    """Answer a text completion."""
    body = parse(CompletionRequest, await read_json(request))
    prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    if len(prompts) != 1:
        raise Unsupported(f"{len(prompts)} prompts in one request", hint="send one request a prompt")
    generation = GenerationInput(text=prompts[0], max_tokens=body.max_tokens or 16, **_shared(body))
    return await _answer(request, body, generation, chat=False)


def _shared(body: ChatCompletionRequest | CompletionRequest) -> dict[str, Any]:
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
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
        "session": body.akashic.session,
        "policy": body.akashic.policy,
        "edit_reuse": body.akashic.edit_reuse,
        "cache_ops": tuple(body.akashic.cache_ops),
    }


def _usage(finished: Finished) -> dict[str, Any]:
    return {
        "prompt_tokens": finished.prompt_tokens,
        "completion_tokens": finished.completion_tokens,
        "total_tokens": finished.prompt_tokens + finished.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": finished.reuse.reused_tokens},
    }


def _block(finished: Finished) -> dict[str, Any]:
    return {**finished.reuse.model_dump(), "timing": finished.timing.model_dump()}


async def _answer(
    request: Request, body: ChatCompletionRequest | CompletionRequest, generation: GenerationInput, *, chat: bool
) -> Response:
    service: Service = request.app.state.service
    ignored = sorted(body.model_extra or ())
    headers = {"x-akashic-ignored": ", ".join(json.dumps(i)[1:-1] for i in ignored)} if ignored else {}
    if ignored:
        logger.info("ignored request fields: %s", ", ".join(ignored))
    if body.stream:
        usage = body.stream_options is not None and body.stream_options.include_usage
        return EventStream(  # type: ignore[return-value]  # an ASGI app, as Starlette allows
            _chunks(service, generation, chat=chat, with_usage=usage),
            media_type="text/event-stream",
            keepalive=b": still working\n\n",
            on_error=lambda error: b"data: " + dump(wire_error("/v1/", _ours(error))) + b"\n\n",
            headers=headers,
        )
    finished = await until_gone(request.receive, _collect(service, generation))
    if finished is None:
        return Response(status_code=_CLIENT_CLOSED)
    started, last = finished
    choice = {"index": 0, "finish_reason": _reason(last), "logprobs": None}
    choice |= {"message": {"role": "assistant", "content": last.text}} if chat else {"text": last.text}
    head = _head(started, chat=chat, chunk=False)
    return JSONResponse({**head, "choices": [choice], "usage": _usage(last), "akashic": _block(last)}, headers=headers)


def _ours(error: Exception) -> AkashicError:
    if isinstance(error, AkashicError):
        return error
    logger.exception("a stream failed", exc_info=error)
    return AkashicError(f"an internal error: {type(error).__name__}", hint="see `akashic daemon logs`")


async def _collect(service: Service, generation: GenerationInput) -> tuple[Started, Finished]:
    started: Started | None = None
    events = service.generate(generation)
    try:
        async for event in events:
            if isinstance(event, Started):
                started = event
            if isinstance(event, Finished):
                assert started is not None
                return started, event
    finally:
        await events.aclose()
    raise BadRequest("the request ended without an answer")


def _reason(finished: Finished) -> str:
    return "stop" if finished.finish_reason == "cancelled" else finished.finish_reason


def _head(started: Started, *, chat: bool, chunk: bool) -> dict[str, Any]:
    kind = ("chat.completion" if chat else "text_completion") + (".chunk" if chunk and chat else "")
    prefix = "chatcmpl-" if chat else "cmpl-"
    return {"id": prefix + started.request, "object": kind, "created": int(time.time()), "model": started.model}


async def _chunks(
    service: Service, generation: GenerationInput, *, chat: bool, with_usage: bool
) -> AsyncIterator[bytes]:
    head, first = b"", True
    events = service.generate(generation)
    try:
        async for event in events:
            if isinstance(event, Started):
                head = b"data: " + dump(_head(event, chat=chat, chunk=True))[:-1]
            elif isinstance(event, TextDelta):
                if chat:
                    delta = {"role": "assistant", "content": event.text} if first else {"content": event.text}
                    choice = dump({"index": 0, "delta": delta, "finish_reason": None})
                else:
                    choice = dump({"index": 0, "text": event.text, "finish_reason": None})
                first = False
                yield head + b',"choices":[' + choice + b"]}\n\n"
            elif isinstance(event, Finished):
                body: dict[str, object] = {"delta": {}} if chat else {"text": ""}
                choice = dump({"index": 0, **body, "finish_reason": _reason(event)})
                block = dump(_block(event))
                yield head + b',"choices":[' + choice + b'],"akashic":' + block + b"}\n\n"
                if with_usage:
                    usage = dump(_usage(event))
                    yield head + b',"choices":[],"usage":' + usage + b',"akashic":' + block + b"}\n\n"
                yield b"data: [DONE]\n\n"
    finally:
        await events.aclose()
