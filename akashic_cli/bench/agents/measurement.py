"""A whole measurement of agents: our daemon, peers beside it, and the likelihood of answers; what it came to so far."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from akashic_cli.bench.agents.counting import KEEPS, equal_bounds
from akashic_cli.bench.agents.figures import GOALS, SUSTAINED_GOAL
from akashic_cli.bench.agents.likelihood import likelihood
from akashic_cli.bench.agents.strategies import Setting, is_summarising, meaning, needs_ours
from akashic_cli.bench.agents.sweep import Plan, Sweep, Told
from akashic_cli.bench.agents.workload import Episode
from akashic_cli.bench.own_daemon import OwnDaemon
from akashic_cli.bench.peers import Peer, served
from akashic_cli.bench.request import Target
from akashic_daemon.errors import UsageError


@dataclass(frozen=True, slots=True)
class Asked:
    """Who is measured. base_url: another server in place of our daemon; nll: answers of a run that a model reads, or 0."""

    base_url: str | None = None
    model: str | None = None
    folder: Path | None = None
    peers: tuple[Peer, ...] = ()
    peer_model: str = "default"
    peer_timeout_s: float = 120.0
    nll: int = 0


@dataclass(slots=True)
class Measurement:
    """What `bench agents` does. Partial figures stand in `report` at any time."""

    plan: Plan
    episodes: Sequence[Episode]
    asked: Asked
    _own: Sweep | None = None
    _peers: dict[str, Sweep] = field(default_factory=dict)
    _likelihood: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.asked.base_url is not None and self.asked.nll:
            raise UsageError(
                f"measuring the likelihood of answers on {self.asked.base_url}: a model's file of ours is needed",
                hint="leave out --nll or --base-url",
            )
        if self.asked.peers and not self._able().policies:
            raise UsageError(
                f"measuring {', '.join(self.plan.policies)} on peers: only akashic does that",
                hint="add none, prune, summarise or rewrite to --policies",
            )

    @property
    def requests(self) -> int | None:
        """How many requests there are, None when that depends on what they show."""
        if self.plan.rates:
            return None
        played = len(self.plan.policies) + len(self.asked.peers) * len(self._able().policies)
        return sum(len(episode.turns) for episode in self.episodes) * played * len(self.plan.concurrency)

    @property
    def has_figures(self) -> bool:
        """Tell if any level was measured."""
        return any(sweep.levels for sweep in (self._own, *self._peers.values()) if sweep is not None)

    def _able(self) -> Plan:
        """Return the plan for a peer: what an agent can do by itself."""
        able = [name for name in self.plan.policies if not needs_ours(name, self.plan.setting)]
        return replace(self.plan, policies=able, is_ours=False)

    def run(self, told: Told) -> None:
        """Measure everything. A peer's errors end its episodes, not the measurement."""
        asked = self.asked
        # Peers that can't be started are known before the long work.
        with served(
            asked.peers, asked.model, peer_model=asked.peer_model, timeout_s=asked.peer_timeout_s, max_tokens=1
        ) as targets:
            self._ours(told)
            for name, target in targets.items():
                self._peers[name] = Sweep(self._able(), self.episodes, target, _named(name, told))
                self._peers[name].run()
        if asked.nll:
            self._read(told)

    def _ours(self, told: Told) -> None:
        if self.asked.base_url is not None:
            self._sweep(Target(self.asked.base_url, None, self.asked.model or "default", None, 1, {}), told)
            return
        with OwnDaemon(self.asked.folder, model=self.asked.model) as daemon:
            daemon.start({})
            self._sweep(daemon.target(named_sessions=True), told)

    def _sweep(self, target: Target, told: Told) -> None:
        self._own = Sweep(self.plan, self.episodes, target, told)
        self._own.run()

    def _read(self, told: Told) -> None:
        assert self._own is not None

        def news(said: dict[str, Any]) -> None:
            if "scored" in said:
                told("likelihood of answers", 0)

        told("likelihood of answers", 0)
        self._likelihood = likelihood(
            self.episodes,
            self.plan.policies,
            self.plan.setting,
            self._own.summaries,
            self.asked.nll,
            self.asked.model,
            news,
            self.plan.seed,
        )

    def report(self) -> dict[str, Any]:
        """Return everything that was measured so far."""
        own = {} if self._own is None else self._own.report()
        peers = {name: sweep.report() for name, sweep in self._peers.items()}
        return {**own, "peers": peers, "likelihood": self._likelihood, "equal_bound": self._equal_bounds()}

    def _equal_bounds(self) -> list[dict[str, Any]]:
        """Return both ways at equal bounds, counted, where both are measured."""
        plan = self.plan
        drops = [its.keep for name in plan.policies for kind, its in (meaning(name, plan.setting),) if kind == "drop"]
        if not drops or not any(is_summarising(name) for name in plan.policies):
            return []
        return equal_bounds(self.episodes, plan.setting, plan.price, sorted({*KEEPS, *drops}))


def _named(name: str, told: Told) -> Told:
    return lambda what, done: told(f"{name}: {what}", done)


def _idle(result: dict[str, Any]) -> Iterator[str]:
    """Name the policies that never did anything: their figures are those of the whole history."""
    setting = Setting(**result["setting"]) if "setting" in result else Setting()
    for policy in result.get("policies", ()):
        kind, its = meaning(policy, setting)
        rows = [row for row in result["levels"] if row["policy"] == policy]
        if not rows:
            continue
        longest = max(row["peak_tokens"] for row in rows)
        if kind == "summarise" and not any(row["summaries"] for row in rows):
            yield f"warning: {policy} never summarised: no prompt had {its.threshold_tokens:,} tokens (the longest {longest:,})"
        if kind == "drop" and not any(row["dropped_tokens"] for row in rows):
            yield f"warning: {policy} dropped nothing: no run had more than {its.keep} tool results before an answer"


def _goal(key: str) -> str:
    return f"goal {GOALS[key]:g}{' at most' if key == 'cost' else ''}"


def sayings(result: dict[str, Any]) -> Iterator[str]:
    """Give what a result says in words: ratios, rates, and what broke off."""
    for row in result["over_summarise"]:
        parts = [f"{key} {row[key]:.2f} x ({_goal(key)})" for key in GOALS if row[key] is not None]
        yield f"{row['policy']} against {row['base']}, {row['level']} agents: {', '.join(parts)} (latency: how much shorter)"
    rows = [row for row in result["equal_bound"] if row["ratio_each"] is not None]
    if rows:
        best = min(rows, key=lambda row: row["ratio_each"])
        yield (
            f"counted at equal bounds: drop:{best['keep']} costs {best['ratio_each']:.2f} x what the cheapest threshold does "
            f"that keeps to the bound of each run ({best['episodes_each']} of {best['episodes']} runs have one; {_goal('cost')})"
        )
    for policy, rate in result["sustainable_per_min"].items():
        yield f"{policy}: " + (
            "no rate was sustained" if rate is None else f"{rate:.2f} episodes a minute are sustained"
        )
    for row in result["sustainable_over"]:
        if row["times"] is not None:
            yield f"{row['policy']} sustains {row['times']:.2f} x the rate of {row['base']} (goal {SUSTAINED_GOAL:g})"
    found = result["likelihood"]
    for row in () if found is None else found["over_summarising"]:
        span = f"95 %: {row['low']:+.4f} to {row['high']:+.4f}"
        yield f"{row['policy']} against {row['base']}: {row['value']:+.4f} nats a token of recorded answers ({span}; goal: not above 0)"
    if found is not None and found["left_out"]:
        yield f"warning: {found['left_out']} answers don't fit the window in every view and were left out"
    yield from _idle(result)
    servers = {"": result, **{f"{name}: ": peer for name, peer in result["peers"].items()}}
    broken = [of + text for of, server in servers.items() for row in server["levels"] for text in row["broken"]]
    for text in dict.fromkeys(broken):
        yield f"warning: {text}"
