"""What the step loop tells of itself: how full the engine is, what runs and waits, and a line in the log for each request.

Racy reads, good enough for people. The log names requests and counts tokens; what they say never stands in it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from akashic_daemon.cache.index import RadixIndex
from akashic_daemon.engine.base import Engine
from akashic_daemon.protocol.native import EngineStatus, SessionActivity
from akashic_daemon.schedule.request import Request, State

logger = logging.getLogger("akashic.requests")


def fill_status(status: EngineStatus, engine: Engine, index: RadixIndex) -> None:
    """Add what the loaded engine and its cache hold."""
    status.window_tokens = engine.model.window_tokens
    status.kv_cells_total, status.kv_cells_used = index.cells_total, index.cells_used
    status.sequences_total, status.sequences_used = index.sequences_total, index.sequences_used
    status.model_bytes, status.kv_bytes = engine.model.size_bytes, engine.model.kv_bytes
    status.threads = int(getattr(engine, "threads", 0))


def activity(requests: Iterable[Request]) -> list[SessionActivity]:
    """Describe requests that run or wait."""
    now_s = time.monotonic()
    return [
        SessionActivity(
            request=r.id,
            session=r.session,
            state=r.state.value if r.state is not State.DONE else "decode",
            prompt_tokens=r.prompt_tokens,
            reused_tokens=r.reuse.reused_tokens,
            prefilled_tokens=r.prompt_tokens if r.generated else max(0, r.prompt_tokens - r.ahead),
            generated_tokens=len(r.generated),
            age_s=now_s - r.created_s,
        )
        for r in requests
    ]


def log_end(request: Request, how: str) -> None:
    """Write a request's line: `how` it ended, and what it cost, as name=value."""
    reuse, timing = request.reuse, request.timing
    logger.info(
        "request=%s session=%s model=%s priority=%s end=%s prompt_tokens=%d reused_tokens=%d computed_tokens=%d "
        "generated_tokens=%d queued_ms=%d first_token_ms=%d total_ms=%d",
        request.id, request.session or "-", request.model, request.priority, how, request.prompt_tokens,
        reuse.reused_tokens, reuse.computed_tokens, len(request.generated), timing.queued_s * 1000,
        timing.first_token_s * 1000, (time.monotonic() - request.created_s) * 1000,
    )  # fmt: skip
