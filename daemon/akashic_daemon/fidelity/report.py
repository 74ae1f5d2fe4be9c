"""Adding up: one run's figures for each variant, and the means over all runs."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from akashic_daemon.cache.keys import OpTable, token_count
from akashic_daemon.cache.tree import common_length
from akashic_daemon.fidelity.variants import FULL, Seen, Variant


@dataclass(slots=True)
class Tally:
    """What one variant came to in one run. Sums are in nats.

    computed_tokens: what this variant computes by itself, if nothing is ever evicted: in each turn what follows the longest
    prefix, operations included, that one of its own earlier turns had. cut_turns: turns in which it saw less than everything.
    """

    tokens: int = 0
    nll_sum: float = 0.0
    kl_sum: float = 0.0
    turns: int = 0
    cut_turns: int = 0
    visible_sum: int = 0
    computed_tokens: int = 0
    _ops: OpTable = field(default_factory=OpTable)
    _keys: list[array[int]] = field(default_factory=list)

    def turn(self, seen: Seen, *, cut: bool) -> None:
        """Account for the tokens of a turn."""
        key = self._ops.key(seen.path)
        known = max((common_length(key, earlier) for earlier in self._keys), default=0)
        self.computed_tokens += token_count(key[known:])
        self._keys.append(key)
        self.turns += 1
        self.cut_turns += cut
        self.visible_sum += seen.visible_tokens

    def score(self, tokens: int, nll: float, kl: float) -> None:
        """Account for scored tokens."""
        self.tokens += tokens
        self.nll_sum += nll
        self.kl_sum += kl

    def figures(self) -> dict[str, Any]:
        """Return the run's figures: nll and kl are means per scored token."""
        return {
            "nll": self.nll_sum / self.tokens,
            "kl": self.kl_sum / self.tokens,
            "cut_turns": self.cut_turns,
            "visible_tokens": round(self.visible_sum / self.turns, 1),
            "computed_tokens": self.computed_tokens,
        }


def run_report(name: str, tallies: dict[Variant, Tally], left_out: int) -> dict[str, Any]:
    """Return one run's figures. `left_out` turns didn't fit the window."""
    full = tallies[FULL]
    return {
        "run": name,
        "turns": full.turns,
        "turns_left_out": left_out,
        "scored_tokens": full.tokens,
        "variants": {str(variant): tally.figures() for variant, tally in tallies.items()},
    }


def summary(runs: Sequence[dict[str, Any]], variants: Sequence[Variant]) -> list[dict[str, Any]]:
    """Return, for each variant, plain means over the runs, and over those runs alone in which anything was cut."""
    out = []
    for variant in variants:
        rows = [(run["variants"][str(variant)], run["variants"][str(FULL)]) for run in runs]
        cut = [(row, full) for row, full in rows if row["cut_turns"]]
        out.append(
            {
                "variant": str(variant),
                "kind": variant.kind.value,
                "keep": variant.keep,
                "nll": _mean([row["nll"] for row, _ in rows]),
                "nll_over_full": _mean([row["nll"] - full["nll"] for row, full in rows]),
                "kl": _mean([row["kl"] for row, _ in rows]),
                "cut_runs": len(cut),
                "cut_nll_over_full": _mean([row["nll"] - full["nll"] for row, full in cut]),
                "cut_kl": _mean([row["kl"] for row, _ in cut]),
                "visible_tokens": _mean([row["visible_tokens"] for row, _ in rows]),
                "computed_tokens": sum(row["computed_tokens"] for row, _ in rows),
            }
        )
    return out


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
