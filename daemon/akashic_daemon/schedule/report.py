"""What the step loop tells of itself: how full the engine is, and what runs and waits. Racy reads, good enough for people."""

from __future__ import annotations

import time
from collections.abc import Iterable

from akashic_daemon.cache.index import RadixIndex
from akashic_daemon.engine.base import Engine
from akashic_daemon.protocol.native import EngineStatus, SessionActivity
from akashic_daemon.schedule.request import Request, State


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
