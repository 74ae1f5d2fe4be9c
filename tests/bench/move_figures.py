"""What a running stream notices of moves: the times between its tokens, and what moved meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field

from akashic_cli.bench.summary import percentile


@dataclass(slots=True)
class Figures:
    """Seconds between tokens, and what moved while they came."""

    gaps_s: list[float] = field(default_factory=list)
    moved_bytes: int = 0
    moving_s: float = 0.0

    @property
    def p99_s(self) -> float:
        """What 99 of 100 tokens came within."""
        return percentile(self.gaps_s, 0.99)

    def told(self) -> dict[str, object]:
        """Return the figures as JSON."""
        return {
            "tokens": len(self.gaps_s),
            "inter_token_p50_s": round(percentile(self.gaps_s, 0.5), 5),
            "inter_token_p99_s": round(self.p99_s, 5),
            "moved_bytes": self.moved_bytes,
            "moved_bytes_per_s": round(self.moved_bytes / self.moving_s) if self.moving_s else 0,
        }
