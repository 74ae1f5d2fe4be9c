"""How many requests run together: fewer when their KV fills the engine (PAPERS section 2, adaptive batching)."""

from __future__ import annotations

_FULL, _ROOMY = 0.90, 0.50
_EVERY = 16
"""Looks at the queue between two looks at the memory: what a change does must show first."""


class BatchLimit:
    """Halves above 90 % memory pressure and doubles below 50 %, between one and what fits.

    Pressure is what running requests hold of the engine's cells: what is merely cached can go. Nothing that runs is
    stopped; fewer are admitted.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.now = most
        self.halved_total = 0
        self._looks = 0

    def is_due(self) -> bool:
        """Tell if it is time to look at the memory again."""
        self._looks += 1
        return self._looks >= _EVERY

    def see(self, held: int, cells: int, running: int) -> None:
        """Take in that `running` requests hold so many of the cells."""
        self._looks = 0
        if held > _FULL * cells and running:
            halved = max(1, min(self.now, running) // 2)
            self.halved_total += halved < self.now
            self.now = halved
        elif held < _ROOMY * cells:
            fitting = cells * running // held if held and running else self.most
            self.now = max(1, self.now, min(self.now * 2, self.most, fitting))

    def reset(self) -> None:
        """Begin anew, with an empty engine."""
        self.now, self._looks = self.most, 0
