"""Turns of stored sessions between the CLI's wire and what the daemon computes with."""

from __future__ import annotations

from akashic_daemon.engine.base import SamplingParams
from akashic_daemon.protocol import native
from akashic_daemon.schedule.events import Finished, GenerationEvent, Started, TextDelta, ThinkingDelta, ToolCallDelta


def sampling_of(request: native.TurnRequest, temperature: float) -> SamplingParams:
    """Return how a turn is sampled; `temperature` where it doesn't say."""
    base = SamplingParams()
    return SamplingParams(
        temperature=temperature if request.temperature is None else request.temperature,
        top_k=base.top_k if request.top_k is None else request.top_k,
        top_p=base.top_p if request.top_p is None else request.top_p,
        min_p=base.min_p if request.min_p is None else request.min_p,
        seed=request.seed,
    )


def turn_event(event: GenerationEvent, session: str) -> native.TurnEvent:
    """Return an event of an answer as the CLI hears it."""
    if isinstance(event, Started):
        return native.TurnEvent(
            kind="start", session=session, request=event.request, prompt_tokens=event.prompt_tokens, reuse=event.reuse
        )
    if isinstance(event, TextDelta):
        return native.TurnEvent(kind="text", text=event.text)
    if isinstance(event, ThinkingDelta):
        return native.TurnEvent(kind="thinking", text=event.text)
    if isinstance(event, ToolCallDelta):
        return native.TurnEvent(kind="text", text=event.arguments)
    if isinstance(event, Finished):
        return native.TurnEvent(
            kind="done", session=session, text=event.text, prompt_tokens=event.prompt_tokens,
            completion_tokens=event.completion_tokens, finish_reason=event.finish_reason,
            reuse=event.reuse, timing=event.timing,
        )  # fmt: skip
    return native.TurnEvent(kind="progress", prefilled_tokens=event.prefilled_tokens, prompt_tokens=event.prompt_tokens)
