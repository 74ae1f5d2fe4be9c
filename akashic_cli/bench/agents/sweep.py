"""The sweeps: each policy at each concurrency, then the highest rate of arrivals at which it keeps to the objective."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from akashic_cli.bench.agents.figures import Objective, Price, against, figures, sustained_over
from akashic_cli.bench.agents.load import Load, Stage, Summary
from akashic_cli.bench.agents.strategies import Setting, directed
from akashic_cli.bench.agents.workload import Episode
from akashic_cli.bench.request import Target

_BISECTIONS = 3
_MOST_DOUBLINGS = 6
_FIRST_SHARE = 0.5
"""The first rate that is tried, of what one agent at a time reached."""

Told = Callable[[str, int], None]
"""Takes what is measured, and how many more requests are done."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured. rates: look for the sustainable one too."""

    policies: Sequence[str]
    concurrency: Sequence[int]
    rates: bool
    setting: Setting
    price: Price
    objective: Objective
    seed: int = 1
    is_ours: bool = True


class Sweep:
    """One measurement. `levels` is filled while it runs, so that what was measured outlives an interruption."""

    def __init__(self, plan: Plan, episodes: Sequence[Episode], target: Target, told: Told) -> None:
        self._plan = plan
        self._episodes = episodes
        self._targets = {name: directed(target, name, plan.setting, is_ours=plan.is_ours) for name in plan.policies}
        self._told = told
        self._mark = secrets.token_hex(3)
        self.levels: list[dict[str, Any]] = []
        self.sustainable: dict[str, float | None] = {}
        self.summaries: dict[str, list[Summary]] = {}
        """By policy, what was written at the first level."""

    def run(self) -> None:
        """Measure everything."""
        for level in self._plan.concurrency:
            for policy in self._plan.policies:
                self._level(policy, "concurrency", level, self._together(level))
        for policy in self._plan.policies if self._plan.rates else ():
            self.sustainable[policy] = self._rate(policy)

    def _together(self, agents: int) -> Callable[[Stage], Load]:
        return lambda stage: stage.closed(self._episodes, agents)

    def _level(self, policy: str, kind: str, level: float, play: Callable[[Stage], Load]) -> dict[str, Any]:
        def played() -> None:
            self._told(f"{policy}, {kind} {level:g}", 1)

        # A server that is measured again knows the prompts of last time.
        label = f"{self._mark}-{re.sub(r'[^a-z0-9]+', '-', policy)}-{kind[0]}{len(self.levels)}"
        stage = Stage(self._targets[policy], policy, self._plan.setting, label, played)
        load = play(stage)
        row = {"policy": policy, "kind": kind, "level": level, **figures(load, self._plan.price, self._plan.objective)}
        self.levels.append(row)
        self.summaries.setdefault(policy, load.summaries)
        return row

    def _rate(self, policy: str) -> float | None:
        """Return the highest rate, in episodes a minute, that kept to the objective; None when none did."""
        alone = [row for row in self.levels if row["policy"] == policy and row["kind"] == "concurrency"]
        reached = min(alone, key=lambda row: row["level"])["episodes_per_min"] if alone else 0.0
        if not reached:
            return None
        good, bad = 0.0, None
        rate = _FIRST_SHARE * reached
        for _ in range(_MOST_DOUBLINGS):
            if not self._keeps(policy, rate):
                bad = rate
                break
            good, rate = rate, rate * 2
        for _ in range(_BISECTIONS if bad is not None else 0):
            assert bad is not None
            middle = (good + bad) / 2
            if self._keeps(policy, middle):
                good = middle
            else:
                bad = middle
        return good or None

    def _keeps(self, policy: str, per_min: float) -> bool:
        row = self._level(
            policy, "rate", per_min, lambda stage: stage.open(self._episodes, per_min / 60, self._plan.seed)
        )
        return bool(row["keeps_objective"])

    def report(self) -> dict[str, Any]:
        """Return everything that was measured so far."""
        plan = self._plan
        return {
            "policies": list(plan.policies),
            "setting": asdict(plan.setting),
            "price": asdict(plan.price),
            "objective": asdict(plan.objective),
            "episodes": [
                {
                    "run": e.name,
                    "turns": len(e.turns),
                    "timed_turns": e.timed_turns,
                    "wait_s": sum(t.wait_s for t in e.turns),
                }
                for e in self._episodes
            ],
            "levels": self.levels,
            "over_summarise": against(self.levels),
            "sustainable_per_min": self.sustainable,
            "sustainable_over": sustained_over(self.sustainable),
        }
