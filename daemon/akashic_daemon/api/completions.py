"""OpenAI's text completions: prompts as they are, without a chat template; several in one request run side by side."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from akashic_daemon.api.app_state import service_of
from akashic_daemon.api.body import parse, read_json
from akashic_daemon.api.border import dump, json_response, wire_error
from akashic_daemon.api.ending import akashic_block, check_complete, collect
from akashic_daemon.api.fields import ignored_header, without_nulls
from akashic_daemon.api.openai import shared_fields
from akashic_daemon.api.openai_answer import usage_of
from akashic_daemon.api.stream import CLIENT_CLOSED, EventStream, as_ours, until_gone
from akashic_daemon.errors import BadRequest, Unsupported
from akashic_daemon.protocol.completions import CompletionRequest
from akashic_daemon.schedule.events import Finished, GenerationEvent, GenerationInput, Started, TextDelta
from akashic_daemon.service import Service
from akashic_daemon.transcript.content import without_lone_surrogates

_DEFAULT_TOKENS = 16
_MOST_PROMPTS = 128
_READ_AHEAD = 64


def routes() -> list[Route]:
    """Return the route."""
    return [Route("/v1/completions", completions, methods=["POST"])]


async def completions(request: Request) -> Response:
    """Answer each prompt."""
    service = service_of(request)
    body = parse(CompletionRequest, without_nulls(await read_json(request)))
    prompts = _prompts(body)
    shared = {**shared_fields(body), "max_tokens": body.max_tokens or _DEFAULT_TOKENS}
    asked = [GenerationInput(text=prompt, **shared) for prompt in prompts]
    headers = ignored_header(request, sorted(body.model_extra or ()))
    if body.stream:
        with_usage = body.stream_options is not None and body.stream_options.include_usage
        return EventStream(  # type: ignore[return-value]  # an ASGI app, as Starlette allows
            _chunks(service, asked, echo=body.echo, with_usage=with_usage),
            media_type="text/event-stream",
            keepalive=b": still working\n\n",
            on_error=lambda error: b"data: " + dump(wire_error("/v1/", as_ours(error))) + b"\n\n",
            headers=headers,
        )
    ended = await until_gone(request.receive, _all(service, asked))
    if ended is None:
        return Response(status_code=CLIENT_CLOSED)
    return json_response(_whole(ended, prompts if body.echo else [""] * len(prompts)), headers=headers)


def _prompts(body: CompletionRequest) -> list[str]:
    """Return the prompts. Raises for what can't be answered, saying what to do instead."""
    if body.suffix:
        raise Unsupported(
            "field 'suffix': text in the middle isn't filled in here",
            hint="write the model's own fill-in-the-middle tokens into the prompt",
            param="suffix",
        )
    if body.logprobs is not None and body.logprobs is not False:
        raise Unsupported("field 'logprobs': log probabilities aren't told here", hint="leave it out", param="logprobs")
    prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    if not 1 <= len(prompts) <= _MOST_PROMPTS:
        raise BadRequest(
            f"field 'prompt' has {len(prompts)} prompts", hint=f"send 1 to {_MOST_PROMPTS} in a request", param="prompt"
        )
    for index, prompt in enumerate(prompts):
        if not isinstance(prompt, str):
            raise BadRequest(
                f"field 'prompt[{index}]' is no text but {type(prompt).__name__}", hint="send texts", param="prompt"
            )
    if len(prompts) > 1 and body.akashic.session is not None:
        raise BadRequest(
            f"{len(prompts)} prompts can't all go on in the session {body.akashic.session!r}",
            hint="send one prompt, or leave the session out",
            param="akashic.session",
        )
    return [without_lone_surrogates(prompt) for prompt in prompts]


async def _all(service: Service, asked: Sequence[GenerationInput]) -> list[tuple[Started, Finished]]:
    """Run all to their ends. When one fails, the others are cancelled and its error is raised."""
    tasks = [asyncio.create_task(collect(service, one)) for one in asked]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await _cancel(tasks)


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _merged(
    service: Service, asked: Sequence[GenerationInput]
) -> AsyncGenerator[tuple[int, GenerationEvent | Exception], None]:
    """Run all side by side, and yield each event with its prompt's index. Closing it cancels them."""
    queue: asyncio.Queue[tuple[int, GenerationEvent | Exception]] = asyncio.Queue(_READ_AHEAD)

    async def run(index: int, one: GenerationInput) -> None:
        try:
            async with aclosing(service.generate(one)) as events:
                async for event in events:
                    await queue.put((index, event))
        except Exception as error:  # noqa: BLE001 - handed over, not swallowed
            await queue.put((index, error))

    tasks = [asyncio.create_task(run(index, one)) for index, one in enumerate(asked)]
    try:
        left = len(tasks)
        while left:
            index, event = await queue.get()
            left -= isinstance(event, Finished)
            yield index, event
            if isinstance(event, Exception):
                return
    finally:
        with suppress(asyncio.CancelledError):
            await _cancel(tasks)


async def _chunks(
    service: Service, asked: Sequence[GenerationInput], *, echo: bool, with_usage: bool
) -> AsyncIterator[bytes]:
    """Stream the answers as server-sent events; choices are told apart by `index`."""
    head = b""
    begun: dict[int, Started] = {}
    ended: dict[int, Finished] = {}
    before: dict[int, bytes] = {}
    after = b',"finish_reason":null}]}\n\n'
    async with aclosing(_merged(service, asked)) as events:
        async for index, event in events:
            if isinstance(event, TextDelta):
                yield before[index] + dump(event.text) + after
            elif isinstance(event, Started):
                head = head or b"data: " + dump(_head(event))[:-1] + b',"choices":['
                begun[index] = event
                before[index] = head + b'{"index":%d,"text":' % index
                if echo:
                    yield before[index] + dump(asked[index].text) + after
            elif isinstance(event, Finished):
                check_complete(begun[index], event)
                ended[index] = event
                choice = dump({"index": index, "text": "", "finish_reason": event.finish_reason})
                yield head + choice + b'],"akashic":' + dump(akashic_block(event)) + b"}\n\n"
            elif isinstance(event, Exception):
                raise event
    if with_usage:
        told = _figures([ended[index] for index in range(len(asked))])
        yield head + b"]," + dump(told)[1:] + b"\n\n"
    yield b"data: [DONE]\n\n"


def _whole(ended: Sequence[tuple[Started, Finished]], echoed: Sequence[str]) -> dict[str, Any]:
    choices = [
        {"index": index, "text": before + end.text, "finish_reason": end.finish_reason, "logprobs": None}
        for index, ((_, end), before) in enumerate(zip(ended, echoed, strict=True))
    ]
    return {**_head(ended[0][0]), "choices": choices, **_figures([end for _, end in ended])}


def _figures(ended: Sequence[Finished]) -> dict[str, Any]:
    """Return usage and our block: of one answer as in chats, of several their sums and a block for each choice."""
    if len(ended) == 1:
        return {"akashic": akashic_block(ended[0]), "usage": usage_of(ended[0])}
    total: dict[str, Any] = {}
    for end in ended:
        for name, count in usage_of(end).items():
            if isinstance(count, int):
                total[name] = total.get(name, 0) + count
    cached = sum(end.reuse.reused_tokens for end in ended)
    total["prompt_tokens_details"] = {"cached_tokens": cached}
    return {"akashic": {"choices": [akashic_block(end) for end in ended]}, "usage": total}


def _head(started: Started) -> dict[str, Any]:
    return {
        "id": "cmpl-" + started.request,
        "object": "text_completion",
        "created": int(time.time()),
        "model": started.model,
    }
