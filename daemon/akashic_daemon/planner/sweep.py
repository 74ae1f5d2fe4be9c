"""A search over batch, formats and sparse attention for the best setup within limits."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

from akashic_daemon.errors import UsageError
from akashic_daemon.planner.machines import Machine
from akashic_daemon.planner.plan import figures
from akashic_daemon.planner.roofline import Setup
from akashic_daemon.planner.shapes import ModelShape

BATCHES = (1, 2, 4, 8, 16, 32, 64)
KV_FORMATS = ("f16", "q8_0")
WEIGHTS = (None, "q8_0", "q4_k")
SPARSE = (0, 32, 64)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a setup must keep to; None is no limit. step_s: the longest time between two tokens of a stream."""

    memory_bytes: float | None = None
    step_s: float | None = None
    ttft_s: float | None = None
    price_per_million: float | None = None

    def broken(self, row: dict[str, Any]) -> list[str]:
        """Return the limits that a setup breaks, in words."""
        out = [] if row["fits"] else ["memory"]
        pairs = (
            ("latency", row["step_s"], self.step_s),
            ("first token", row["ttft_s"], self.ttft_s),
            ("price", row["price_per_million_tokens"], self.price_per_million),
        )
        return out + [name for name, value, limit in pairs if limit is not None and value is not None and value > limit]


def sweep(
    shape: ModelShape, machine: Machine, context_tokens: int, limits: Limits, *, reused_tokens: int, exact_only: bool
) -> dict[str, Any]:
    """Return every setup with the limits it breaks, and the fastest that breaks none.

    Of setups within 2 % of the fastest, the one that changes the model least is named: exact attention before sparse, more
    bits before fewer. exact_only leaves sparse attention and other weights out. Raises UsageError on a price that isn't known.
    """
    if limits.price_per_million is not None and not machine.price_per_hour:
        raise UsageError(f"planning under a price: none is known of {machine.name}", hint="give --price-per-hour")
    bounded = machine if limits.memory_bytes is None else machine.with_cache_budget(limits.memory_bytes)
    rows = []
    for weights, kv_format, sparse, batch in product(WEIGHTS, KV_FORMATS, SPARSE, BATCHES):
        if exact_only and (weights or sparse):
            continue
        setup = Setup(context_tokens, batch, kv_format, sparse)
        model = shape if weights is None else shape.quantised(weights)
        row = figures(model, bounded, setup, prompt_tokens=context_tokens, reused_tokens=reused_tokens)
        rows.append(
            {**row, "changes": bool(weights) + bool(sparse) + (kv_format != "f16"), "breaks": limits.broken(row)}
        )
    within = [row for row in rows if not row["breaks"]]
    return {"best": _best(within), "tried": len(rows), "within": len(within), "rows": rows}


def _best(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    if not rows:
        return None
    fastest = max(row["tokens_per_s"] for row in rows)
    near = [row for row in rows if row["tokens_per_s"] >= 0.98 * fastest]
    return min(near, key=lambda row: (row["changes"], row["step_s"]))
