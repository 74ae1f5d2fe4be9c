"""How requests end, whatever API they came through: run to the end, logged by numbers, told by our `akashic` block."""

from __future__ import annotations

import logging
from contextlib import aclosing
from typing import Any

from akashic_daemon.errors import AkashicError, Cancelled
from akashic_daemon.schedule.events import Finished, GenerationInput, Started
from akashic_daemon.service import Service

logger = logging.getLogger("akashic.http")


async def collect(service: Service, generation: GenerationInput) -> tuple[Started, Finished]:
    """Run a request to its end; cancelling this cancels the request."""
    started: Started | None = None
    async with aclosing(service.generate(generation)) as events:
        async for event in events:
            if isinstance(event, Started):
                started = event
            elif isinstance(event, Finished):
                assert started is not None, "Started is always the first event"
                check_complete(started, event)
                return started, event
    raise AkashicError("answering: the request ended without a result", hint="see `akashic daemon logs`")


def check_complete(started: Started, finished: Finished) -> None:
    """Log the end by numbers; raise Cancelled for an answer that was cut off while its client waited."""
    logger.info(
        "request %s ended (%s): prompt %d tokens, %d of them reused; answer %d tokens; %.3f s",
        started.request,
        finished.finish_reason,
        finished.prompt_tokens,
        finished.reuse.reused_tokens,
        finished.completion_tokens,
        finished.timing.total_s,
    )
    if finished.finish_reason == "cancelled":
        raise Cancelled(
            f"answering request {started.request}: it was cut off after {finished.completion_tokens} tokens",
            hint="the daemon is stopping; send it again",
        )


def akashic_block(finished: Finished) -> dict[str, Any]:
    """Return what a request reused and how long it took, as it stands in every answer."""
    return {**finished.reuse.model_dump(), "timing": finished.timing.model_dump()}
