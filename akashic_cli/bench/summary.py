"""Figures of a replay, for a table and for JSON."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from akashic_cli.bench.replay import Player, Turn

COLUMNS = ("RUN", "TURNS", "PROMPT", "CACHED", "COMPUTED", "NEW", "TTFT P50", "TTFT P95")


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of all values don't exceed (nearest rank). `values` isn't empty."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def summarize(turns: Sequence[Turn]) -> dict[str, Any]:
    """Return totals and first-token times; these leave out each run's first turn, which nobody can have cached."""
    later = [turn for turn in turns if turn.index > 0] or list(turns)
    first_tokens = [turn.measured.first_token_s for turn in later]
    return {
        "turns": len(turns),
        "prompt_tokens": sum(t.measured.prompt_tokens for t in turns),
        "cached_tokens": sum(t.measured.cached_tokens for t in turns),
        "computed_tokens": sum(t.measured.computed_tokens for t in turns),
        "unique_new_tokens": sum(t.unique_new_tokens for t in turns),
        "completion_tokens": sum(t.measured.completion_tokens for t in turns),
        "ttft_p50_s": round(statistics.median(first_tokens), 4) if first_tokens else None,
        "ttft_p95_s": round(percentile(first_tokens, 0.95), 4) if first_tokens else None,
        "ttft_sum_s": round(sum(t.measured.first_token_s for t in turns), 3),
    }


def report(players: Sequence[Player], *, wall_s: float, setup: dict[str, Any]) -> dict[str, Any]:
    """Return the whole result: the totals of all runs, and each run with its turns."""
    everything = [turn for player in players for turn in player.turns]
    runs = [
        {
            "run": player.run.name,
            "session": player.session,
            **summarize(player.turns),
            "stopped": None if player.stopped is None else player.stopped.message,
            "turn_list": [_turn(turn) for turn in player.turns],
        }
        for player in players
    ]
    method = "characters" if any(player.unique.is_edited for player in players) else "growth"
    total = summarize(everything)
    return {**setup, "wall_s": round(wall_s, 3), "unique_new_method": method, **total, "runs": runs}


def _turn(turn: Turn) -> dict[str, Any]:
    m = turn.measured
    return {
        "turn": turn.index,
        "prompt_tokens": m.prompt_tokens,
        "cached_tokens": m.cached_tokens,
        "computed_tokens": m.computed_tokens,
        "unique_new_tokens": turn.unique_new_tokens,
        "completion_tokens": m.completion_tokens,
        "ttft_s": round(m.first_token_s, 4),
        "total_s": round(m.total_s, 4),
        "text": m.text,
        "akashic": m.akashic,
    }


def table_rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return a row for each run, and one for all when there are several."""
    from akashic_cli.render.units import count, duration

    parts = list(result["runs"])
    if len(parts) > 1:
        parts.append({"run": "all", **result})
    return [
        (
            part["run"],
            count(part["turns"]),
            count(part["prompt_tokens"]),
            count(part["cached_tokens"]),
            count(part["computed_tokens"]),
            count(part["unique_new_tokens"]),
            duration(part["ttft_p50_s"]),
            duration(part["ttft_p95_s"]),
        )
        for part in parts
    ]
