"""What a session's next turn costs, depending on where its KV is; measured in a daemon of the measurement's own.

One agent a repetition, all taking turns, with KV cells for little more than one: whoever comes next was parked by the
others. Each scenario is one turn of each agent, so no prompt comes twice and only the first ones are cold:

    cold      the agents' first requests: all is computed
    ram       parked: the KV comes from RAM
    resident  the next turn of who just had that one: never demoted
    ssd       a daemon without a RAM tier
    restart   after kill -9 and start
    hinted    on SSD, but the turn was expected
    aborted   a cold prompt cancelled three times, each time a quarter further on, then sent to its end
    agents    recorded runs taking turns, with KV for two of them; the peer gets the same requests
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from akashic_cli.bench.aborted import cancelled_try
from akashic_cli.bench.own_daemon import MAX_TOKENS, OwnDaemon
from akashic_cli.bench.prompts import length, salted, shared_tokens
from akashic_cli.bench.replay import Player, prepare, replay
from akashic_cli.bench.request import Target, measure
from akashic_cli.bench.synthetic import make_run
from akashic_cli.bench.tier_samples import Moved, Result, Sample
from akashic_cli.bench.transcripts import Edit, JsonObject, Run, read_run
from akashic_daemon.errors import AkashicError, TranscriptError, UsageError
from akashic_daemon.protocol.native import ModelDetail
from akashic_daemon.protocol.tiers import Hinted

__all__ = ["MAX_TOKENS", "SCENARIOS", "Plan", "Suite", "parse_only"]
SCENARIOS = ("cold", "ram", "resident", "ssd", "restart", "hinted", "aborted", "agents")
ONE_TURN = ("ram", "resident", "ssd", "restart", "hinted")
ON_DISK = ("ssd", "restart", "hinted")
"""Scenarios whose KV comes from the disk itself, not from what the operating system holds of it."""
EXPECT_S = 2.0
_SPARE_TOKENS = 256
"""What fits beside the longest prompt: its answer, and what an estimate of its length may lack."""
_RESIDENT_AGENTS = 2
_CANCELLED_AT = (0.25, 0.5, 0.75)
"""Of an aborted prompt, what is there when each try is cancelled."""

Told = Callable[[str, int], None]
"""Takes the progress: which scenario, and how many more requests are done."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured. `model`: a file, or a name that a fresh home knows; None is the default."""

    only: tuple[str, ...] = SCENARIOS
    repeat: int = 3
    tokens: int = 5000
    agents: int = 6
    agent_turns: int = 5
    transcripts: tuple[Path, ...] = ()
    model: str | None = None
    peer: Target | None = None
    folder: Path | None = None
    command: tuple[str, ...] | None = None
    """What serves, instead of the daemon that is installed."""

    @property
    def turns(self) -> int:
        """Requests of each agent: the cold one, and one a scenario."""
        return 1 + sum(name in self.only for name in ONE_TURN)

    @property
    def requests(self) -> int:
        """All requests, those of the peer too."""
        mixed = self.agents * self.agent_turns * (2 if self.peer else 1) if "agents" in self.only else 0
        alone = (
            self.repeat * (self.turns + (len(_CANCELLED_AT) + 1) * ("aborted" in self.only))
            if set(self.only) - {"agents"}
            else 0
        )
        return alone + mixed

    def setup(self) -> dict[str, Any]:
        """Return what a result says of its plan."""
        return {
            "repeat": self.repeat,
            "transcripts": [path.name for path in self.transcripts],
            "agents": self.agents,
            "agent_turns": self.agent_turns,
            "peer": None if self.peer is None else self.peer.base_url,
        }


def parse_only(text: str) -> tuple[str, ...]:
    """Read `--only`: scenarios, commas between. Raises UsageError."""
    names = [part.strip() for part in text.split(",")]
    unknown = [name for name in names if name not in SCENARIOS]
    if unknown:
        raise UsageError(
            f"reading --only: there is no scenario {unknown[0]!r}", hint=f"they are {', '.join(SCENARIOS)}"
        )
    # Resident is who just had a turn.
    return tuple(name for name in SCENARIOS if name in names or (name == "ram" and "resident" in names))


@dataclass(slots=True)
class Agent:
    """A session on its way through the last requests of a run."""

    session: str
    requests: list[list[JsonObject]]
    prompt_tokens: int = 0
    sent: int = 0


class Suite:
    """One measurement. `result` is filled while `run` goes on, so that what was measured outlives an interruption."""

    def __init__(self, plan: Plan, told: Told) -> None:
        self._plan = plan
        self._told = told
        self.result = Result()
        self._runs = [read_run(path) for path in plan.transcripts]

    def run(self) -> None:
        """Measure all scenarios of the plan. Raises what ends it early, which `result` names."""
        try:
            if set(self._plan.only) - {"agents"}:
                self._turns()
            if "agents" in self._plan.only:
                self._agents()
        except AkashicError as error:
            self.result.stopped = error.message
            raise
        except KeyboardInterrupt:
            self.result.stopped = "interrupted"
            raise

    # -- one session's next turn ---------------------------------------------------------------------------------

    def _turns(self) -> None:
        plan = self._plan
        agents = [self._agent(number) for number in range(plan.repeat)]
        with OwnDaemon(plan.folder, model=plan.model, command=plan.command) as daemon:
            tokens = self._look(daemon, [agent.requests[-1] for agent in agents])
            cells = max(tokens) + _SPARE_TOKENS
            self.result.resident_tokens = cells
            warm = {"cache.kv_tokens": cells}
            daemon.start(warm)
            for agent in agents:
                self._turn(daemon, agent, "cold")
            for agent in agents:
                self._turn(daemon, agent, "ram")
                self._turn(daemon, agent, "resident")
            if "ssd" in plan.only:
                _start_anew(daemon, {**warm, "cache.ram_bytes": 0})
                for agent in agents:
                    self._turn(daemon, agent, "ssd")
            if "restart" in plan.only:
                _start_anew(daemon, warm)
                for agent in agents:
                    daemon.settle()
                    daemon.kill()
                    daemon.start(warm)
                    self._turn(daemon, agent, "restart")
            if "hinted" in plan.only:
                _start_anew(daemon, warm)
                for agent in agents:
                    self._turn(daemon, agent, "hinted")
            if "aborted" in plan.only:
                for number in range(plan.repeat):
                    self._aborted(daemon, number)
            self.result.problems += daemon.tiers().problems

    def _agent(self, number: int, kind: str = "turn") -> Agent:
        """Return an agent with as many requests as the plan has turns, the last ones of its run."""
        plan = self._plan
        made = make_run(number, plan.tokens, plan.turns)
        run = self._runs[number % len(self._runs)] if self._runs else made
        session = f"{kind}-{number}"
        requests = [salted(messages, session) for messages in run.requests(Edit("none"))]
        if len(requests) < plan.turns:
            raise TranscriptError(
                f"measuring with the run {run.name}: it has {len(requests)} requests, {plan.turns} are needed",
                hint="choose a longer one, or fewer scenarios with --only",
            )
        return Agent(session, requests[-plan.turns :])

    def _look(self, daemon: OwnDaemon, prompts: Sequence[list[JsonObject]]) -> list[int]:
        """Return about how long prompts are, and note what the model is; the daemon is stopped again."""
        status = daemon.start({"cache.ram_bytes": 0, "cache.ssd_bytes": 0})
        self.result.model = status.engine.model or ""
        detail = ModelDetail.model_validate(daemon.client.get(f"/models/{self.result.model}"))
        self.result.kv_bytes_per_token = detail.kv_bytes_per_token or 0
        lengths = [length(daemon, messages) for messages in prompts]
        daemon.stop()
        return lengths

    def _turn(self, daemon: OwnDaemon, agent: Agent, scenario: str) -> None:
        """Send an agent's next request and keep what it cost; nothing where the plan leaves the scenario out."""
        if scenario != "cold" and scenario not in self._plan.only:
            return
        self._told(scenario, 0)
        before = daemon.settle()
        if scenario in ON_DISK:
            kept = daemon.forget_pages()
            self.result.problems += [kept] if kept else []
        if scenario == "hinted":
            _hint(daemon, agent)
        target = daemon.target(named_sessions=True)
        with target.http() as http:
            measured = measure(http, target, agent.requests[agent.sent], agent.session)
        new = max(0, measured.prompt_tokens - agent.prompt_tokens)
        kv_tokens = measured.computed_tokens + measured.completion_tokens
        self._keep(Sample(scenario, agent.session, agent.sent, new, kv_tokens, measured))
        self._moved(scenario, Moved.between(before, daemon.settle()))
        agent.prompt_tokens, agent.sent = measured.prompt_tokens, agent.sent + 1

    def _aborted(self, daemon: OwnDaemon, number: int) -> None:
        """Cancel a cold prompt again and again, each time further on, and send it to its end; keep what each try computed."""
        agent = self._agent(number, "aborted")
        messages = agent.requests[0]
        self._told("aborted", 0)
        before = daemon.settle()
        target = daemon.target(named_sessions=True)
        tries = []
        for share in _CANCELLED_AT:
            tries.append(cancelled_try(daemon, target, messages, agent.session, share))
            self._told("aborted", 1)
        with target.http() as http:
            measured = measure(http, target, messages, agent.session)
        tries.append(measured.computed_tokens)
        kv_tokens = sum(tries) + measured.completion_tokens
        self._keep(Sample("aborted", agent.session, 0, measured.prompt_tokens, kv_tokens, measured, tuple(tries)))
        self._moved("aborted", Moved.between(before, daemon.settle()))

    def _keep(self, sample: Sample) -> None:
        self.result.samples.append(sample)
        self._told(sample.scenario, 1)

    def _moved(self, scenario: str, moved: Moved) -> None:
        self.result.moved.setdefault(scenario, []).append(moved)

    # -- more agents than fit ------------------------------------------------------------------------------------

    def _agents(self) -> None:
        plan = self._plan
        runs = self._mixed_runs()
        players = prepare(runs, Edit("none"), plan.agent_turns)
        with OwnDaemon(plan.folder, model=plan.model, command=plan.command) as daemon:
            lengths = self._look(daemon, [player.requests[-1] for player in players])
            cells = sum(sorted(lengths)[-_RESIDENT_AGENTS:]) + _SPARE_TOKENS
            daemon.start({"cache.kv_tokens": cells})
            shared = shared_tokens(daemon, players)
            before = daemon.settle()
            self._play("agents", players, daemon.target(named_sessions=False))
            self._moved("agents", Moved.between(before, daemon.settle()))
            self.result.problems += daemon.tiers().problems
            daemon.stop()
        self.result.unique_tokens = sum(turn.unique_new_tokens for p in players for turn in p.turns) - shared
        if plan.peer is not None:
            self._play("peer", prepare(runs, Edit("none"), plan.agent_turns), plan.peer)

    def _mixed_runs(self) -> list[Run]:
        """Return a run an agent; runs that are too few come again, with another beginning."""
        plan = self._plan
        if not self._runs:
            return [make_run(100 + n, plan.tokens // 2, plan.agent_turns) for n in range(plan.agents)]
        runs = []
        for number in range(plan.agents):
            run = self._runs[number % len(self._runs)]
            again = number // len(self._runs)
            runs.append(Run(f"{run.name}-{again}", salted(run.messages, f"{again}")) if again else run)
        return runs

    def _play(self, scenario: str, players: list[Player], target: Target) -> None:
        self._told(scenario, 0)
        replay(players, target, agents=len(players), parallel=False, played=lambda: self._take(scenario, players))
        for player in players:
            if player.stopped is not None:
                raise player.stopped

    def _take(self, scenario: str, players: list[Player]) -> None:
        """Keep the turns that were played since the last time."""
        known = {(s.session, s.turn) for s in self.result.samples if s.scenario == scenario}
        for player in players:
            for turn in player.turns:
                if (player.run.name, turn.index) not in known:
                    m = turn.measured
                    kv_tokens = m.computed_tokens + m.completion_tokens
                    self._keep(Sample(scenario, player.run.name, turn.index, turn.unique_new_tokens, kv_tokens, m))


def _start_anew(daemon: OwnDaemon, settings: dict[str, Any]) -> None:
    daemon.settle()
    daemon.stop()
    daemon.start(settings)


def _hint(daemon: OwnDaemon, agent: Agent) -> None:
    """Announce an agent's next turn and wait as long as was said. Raises AkashicError when the hint isn't taken."""
    body = {"tool_running": True, "expect_s": EXPECT_S}
    hinted = Hinted.model_validate(daemon.client.post(f"/sessions/{agent.session}/hint", body))
    if not hinted.is_taken:
        raise AkashicError(f"hinting at session {agent.session} of the measured daemon: {hinted.detail}")
    time.sleep(EXPECT_S)
