"""Wire models of the native routes about the tiers: what they hold, and what people may ask of them.

    GET  /cache/tiers                 TierReport
    GET  /cache/verify?fix=1          NDJSON of one native.StoreReport
    POST /cache/prune                 PruneRequest -> NDJSON of one Pruned
    POST /sessions/{id}/prefetch      NDJSON of one Prefetched
    POST /sessions/{id}/hint          HintRequest -> Hinted

Totals count since the daemon's start; what a disk was made to write and read counts since its store was made.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field

from akashic_daemon.protocol.wire import Wire

TierName = Literal["gpu", "ram", "ssd"]
LONGEST_HINT_S = 86_400.0
"""Who is expected later than in a day isn't worth a hint."""


class Tier(Wire):
    """One tier. gpu is the engine's KV cache, wherever that is; its tokens aren't kept in blocks.

    used_bytes counts against the budget: payload_bytes, and what their slots and dead records waste. hit_tokens: of
    prompts that came from here; hit_rate is their share of all prompt tokens.
    """

    tier: TierName
    is_on: bool = True
    budget_bytes: int = 0
    used_bytes: int = 0
    payload_bytes: int = 0
    blocks: int | None = None
    tokens: int | None = None
    hit_tokens: int = 0
    hit_rate: float | None = None

    @property
    def waste(self) -> float:
        """Share of the used bytes that hold nothing."""
        return 1 - self.payload_bytes / self.used_bytes if self.used_bytes else 0.0


class Moved(Wire):
    """What moved between tiers, in bytes and blocks."""

    blocks: int = 0
    bytes: int = 0


class Moves(Wire):
    """Movements between tiers. Demotions copy out of the engine, promotions bring back; prefetches are among them."""

    demoted: Moved = Moved()
    promoted_from_ram: Moved = Moved()
    promoted_from_ssd: Moved = Moved()
    waiting_writes: int = 0
    prefetched_bytes: int = 0
    prefetch_used_bytes: int = 0
    prefetch_wasted_bytes: int = 0


class Evictions(Wire):
    """What was evicted. lost: blocks whose last copy went, by reason; the next who wants them computes them."""

    gpu_tokens: int = 0
    gpu_parked_tokens: int = 0
    ram: Moved = Moved()
    ssd: dict[str, int] = Field(default_factory=dict)
    lost: dict[str, int] = Field(default_factory=dict)


class Wear(Wire):
    """What the disk was made to do. refused: blocks that weren't written, by reason."""

    written_bytes: int = 0
    rewritten_bytes: int = 0
    read_back_bytes: int = 0
    never_read_bytes: int = 0
    evicted_unread_bytes: int = 0
    day_written_bytes: int = 0
    day_budget_bytes: int = 0
    refused: dict[str, int] = Field(default_factory=dict)


class TierReport(Wire):
    """What the tiers hold and did.

    staging_bytes: buffers between engine, RAM and disk, beside the tiers. stall_s: seconds that requests waited for what
    came back. hints: sessions that were announced; met: came in time; expired: didn't.
    """

    tiers: list[Tier] = Field(default_factory=list)
    moves: Moves = Moves()
    evictions: Evictions = Evictions()
    wear: Wear = Wear()
    staging_bytes: int = 0
    reloads: int = 0
    stall_s: float = 0.0
    hints: int = 0
    hints_met: int = 0
    hints_expired: int = 0
    problems: list[str] = Field(default_factory=list)


class PruneRequest(Wire):
    """What to remove; at least one is set. dry_run: only say what would go."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    everything: bool = False
    unused_for_s: float | None = Field(None, ge=0)
    other_models: bool = False
    to_bytes: int | None = Field(None, ge=0)
    dry_run: bool = True


class Pruned(Wire):
    """What a prune removed, or would. left: why the disk still holds some of it, else empty."""

    kind: Literal["done", "error"] = "done"
    dry_run: bool = False
    ssd_blocks: int = 0
    ssd_bytes: int = 0
    ram_blocks: int = 0
    ram_bytes: int = 0
    freed_bytes: int = 0
    left: str = ""
    error: dict[str, Any] | None = None


class Prefetched(Wire):
    """What a prefetch brought into RAM of a session, in tokens, blocks and bytes.

    tokens_known: of the session's newest path that the tiers have. detail: why it isn't all in RAM now, else empty.
    """

    kind: Literal["done", "error"] = "done"
    session: str = ""
    tokens_known: int = 0
    tokens_in_ram: int = 0
    blocks_brought: int = 0
    bytes_brought: int = 0
    bytes_in_ram: int = 0
    detail: str = ""
    error: dict[str, Any] | None = None


class HintRequest(Wire):
    """A session's next request is expected in so many seconds, because a tool runs; or no more."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    tool_running: bool = True
    expect_s: float = Field(30.0, ge=0, le=LONGEST_HINT_S)


class Hinted(Wire):
    """Whether a hint has any effect. detail: why not, else empty."""

    session: str
    is_taken: bool
    tokens: int = 0
    detail: str = ""
