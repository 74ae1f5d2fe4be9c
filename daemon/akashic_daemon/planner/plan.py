"""One configuration on one machine, as figures: speed, first token, what binds, what fits, which tiers pay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from akashic_daemon.planner.machines import Machine
from akashic_daemon.planner.roofline import (
    Setup,
    best_block_tokens,
    breakeven_tokens,
    decode_step,
    prefill,
    reload_s,
)
from akashic_daemon.planner.shapes import ModelShape

WORK_BYTES = 512 << 20
"""Memory that activations, graphs and the runtime take on a card; a guess, and said so in the report."""
_WORK_SHARE = 0.05


def fits(shape: ModelShape, machine: Machine, setup: Setup) -> dict[str, Any]:
    """Return what memory is needed, and the longest contexts and largest batches that fit."""
    work = min(WORK_BYTES, machine.memory_bytes * _WORK_SHARE)
    per_token = shape.kv_bytes_per_token(setup.kv_format)
    left = machine.memory_bytes - shape.resident_weight_bytes - work
    kv_bytes = setup.batch * setup.context_tokens * per_token
    return {
        "fits": kv_bytes <= left,
        "weight_bytes": round(shape.resident_weight_bytes),
        "kv_bytes": round(kv_bytes),
        "kv_bytes_per_token": round(per_token),
        "free_bytes": round(left - kv_bytes),
        "most_tokens": max(0, int(left // per_token)),
        "largest_batch": max(0, int(left // (per_token * setup.context_tokens))),
    }


def figures(
    shape: ModelShape, machine: Machine, setup: Setup, *, prompt_tokens: int, reused_tokens: int
) -> dict[str, Any]:
    """Return the figures of one setup. `reused_tokens` of the prompt have their KV; the rest is computed."""
    step = decode_step(shape, machine, setup)
    computed = max(0, prompt_tokens - reused_tokens)
    first = prefill(shape, machine, computed, setup, history_tokens=prompt_tokens - computed)
    cold = prefill(shape, machine, prompt_tokens, setup)
    per_s = setup.batch / step.seconds
    price = machine.price_per_hour / 3600 / per_s * 1e6 if machine.price_per_hour else None
    return {
        "context_tokens": setup.context_tokens,
        "batch": setup.batch,
        "kv": setup.kv_format,
        "weights": shape.weights if not shape.weight_bytes_known else "as in the file",
        "sparse_blocks": setup.sparse_blocks,
        "tokens_per_s": per_s,
        "tokens_per_s_each": 1 / step.seconds,
        "step_s": step.seconds,
        "step_parts_s": step.parts,
        "bound_by": step.bound_by,
        "ttft_s": first.seconds,
        "ttft_cold_s": cold.seconds,
        "prefill_tokens_per_s": prompt_tokens / cold.seconds if prompt_tokens else None,
        "prefill_bound_by": cold.bound_by,
        "price_per_million_tokens": price,
        **fits(shape, machine, setup),
    }


def variants(shape: ModelShape, machine: Machine, setup: Setup) -> list[dict[str, Any]]:
    """Return the same setup with other formats and sparse attention, beside the one asked for."""
    prompt = setup.context_tokens
    rows = []
    for name, model, other in (
        ("as asked", shape, setup),
        ("KV in 8 bits", shape, replace(setup, kv_format="q8_0")),
        ("weights in 4 bits", shape.quantised("q4_k"), setup),
        ("32 sparse blocks", shape, replace(setup, sparse_blocks=32)),
        ("all three", shape.quantised("q4_k"), replace(setup, kv_format="q8_0", sparse_blocks=32)),
    ):
        rows.append({"variant": name, **figures(model, machine, other, prompt_tokens=prompt, reused_tokens=0)})
    return rows


def tiers(shape: ModelShape, machine: Machine, setup: Setup, *, sessions: int) -> list[dict[str, Any]]:
    """Return, for each tier below memory, whether reloading a context beats computing it, and the size that is of use.

    useful_bytes: the KV of `sessions` contexts that memory has no room for, and that no faster tier took.
    """
    fitting = fits(shape, machine, setup)
    per_token = shape.kv_bytes_per_token(setup.kv_format)
    waiting = max(
        0.0, sessions * setup.context_tokens * per_token - max(0, fitting["free_bytes"] + fitting["kv_bytes"])
    )
    compute_s = prefill(shape, machine, setup.context_tokens, setup).seconds
    rows = []
    for tier in machine.tiers:
        took_s = reload_s(shape, tier, setup.context_tokens, setup.kv_format, block_tokens=setup.block_tokens)
        pays = took_s < compute_s
        useful = min(waiting, tier.size_bytes) if pays else 0.0
        waiting -= useful
        rows.append(
            {
                "tier": tier.name,
                "pays": pays,
                "reload_s": took_s,
                "compute_s": compute_s,
                "breakeven_tokens": breakeven_tokens(shape, machine, tier, setup),
                "useful_bytes": round(useful),
                "size_bytes": round(tier.size_bytes),
                "block_tokens": best_block_tokens(shape, tier, setup),
            }
        )
    return rows
