"""What an answer becomes in its session: a message, and the ids that it was sampled as. Also of one that was only continued."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from akashic_daemon.engine.base import Engine
from akashic_daemon.errors import BadRequest
from akashic_daemon.schedule.events import Finished, GenerationInput
from akashic_daemon.trajectory.message import Message, Role
from akashic_daemon.trajectory.prompt import Prompt


@dataclass(frozen=True, slots=True)
class Said:
    """An answer, what stands before it, and its ids; no ids when they don't spell it."""

    before: tuple[Message, ...]
    answer: Message | None
    ids: tuple[int, ...]


def checked_continuation(request: GenerationInput) -> GenerationInput:
    """Return a request that continues its last message only if there is something to continue; raises BadRequest."""
    if not request.continue_final:
        return request
    assert request.messages
    last = request.messages[-1]
    if last.role is not Role.ASSISTANT or last.tool_calls:
        raise BadRequest(
            f"continuing the last message: it is the {last.role.value}'s{' and has tool calls' if last.tool_calls else ''}",
            hint="let the last message be the assistant's text",
            param="messages",
        )
    if last.content:
        return request
    if len(request.messages) == 1:
        raise BadRequest("continuing the last message: it is empty, and the only one", param="messages")
    return replace(request, messages=request.messages[:-1], continue_final=False)


def answer_of(
    engine: Engine, request: GenerationInput, prompt: Prompt | None, generated: Sequence[int], finished: Finished
) -> Said:
    """Return what is to be kept of an answer."""
    before = request.messages or ()
    ids = [token for token in generated if not engine.is_end(token)]
    text, thinking = finished.text, finished.thinking
    if request.continue_final:
        last, before = before[-1], before[:-1]
        begun = _ids_of(engine, last.content, prompt)
        ids = [*begun, *ids] if begun is not None else []
        text, thinking = last.content + text, last.thinking
    if not (text or thinking or finished.tool_calls):
        return Said(before, None, ())
    answer = Message(
        Role.ASSISTANT, text, thinking=thinking, tool_calls=finished.tool_calls, event_time_s=time.time()
    )  # fmt: skip
    # Ids of calls and thoughts are looked at when they are used: which text they are, the marks say.
    marked = bool(answer.tool_calls) or finished.thinking is not None
    exact = marked or b"".join(map(engine.token_bytes, ids)) == text.encode("utf-8", "surrogatepass")
    return Said(before, answer, tuple(ids) if exact else ())


def _ids_of(engine: Engine, text: str, prompt: Prompt | None) -> list[int] | None:
    """Return the tokens at the end of a prompt that spell a text; None when it ends otherwise."""
    wanted = text.encode("utf-8", "surrogatepass")
    tokens = prompt.tokens if prompt is not None else ()
    size_bytes = 0
    for index in range(len(tokens) - 1, -1, -1):
        size_bytes += len(engine.token_bytes(tokens[index]))
        if size_bytes >= len(wanted):
            ids = list(tokens[index:])
            return ids if b"".join(map(engine.token_bytes, ids)) == wanted else None
    return None
