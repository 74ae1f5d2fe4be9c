"""Replay recorded runs: one after another, interleaved turn by turn, or at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from akashic_cli.bench.request import Measured, Target, measure
from akashic_cli.bench.transcripts import Edit, JsonObject, Run
from akashic_cli.bench.unique import UniqueTokens
from akashic_daemon.errors import AkashicError


@dataclass(frozen=True, slots=True)
class Turn:
    """One replayed request: which, what it cost, and how many of its prompt's tokens no earlier one of its run had."""

    run: str
    index: int
    unique_new_tokens: int
    measured: Measured


@dataclass(slots=True)
class Player:
    """One run on its way through its requests. `stopped` says why it ended early."""

    run: Run
    session: str
    requests: list[list[JsonObject]]
    unique: UniqueTokens
    turns: list[Turn] = field(default_factory=list)
    stopped: AkashicError | None = None

    def play(self, target: Target) -> bool:
        """Send the next request; False at the end. An error ends this run and is kept: others go on."""
        if self.stopped is not None or len(self.turns) == len(self.requests):
            return False
        messages = self.requests[len(self.turns)]
        try:
            # A connection each, as tools that start anew have it; it is made before the clock starts.
            with target.http() as http:
                measured = measure(http, target, messages, self.session)
        except AkashicError as error:
            self.stopped = error
            return False
        new = self.unique.add(messages, measured.prompt_tokens)
        self.turns.append(Turn(self.run.name, len(self.turns), new, measured))
        return True


def prepare(runs: Sequence[Run], edit: Edit, max_turns: int | None) -> list[Player]:
    """Return a player for each run, the sessions named after their place."""
    return [
        Player(
            run, f"replay-{i}", list(islice(run.requests(edit), max_turns)), UniqueTokens(is_edited=edit.kind != "none")
        )
        for i, run in enumerate(runs)
    ]


def replay(
    players: Sequence[Player], target: Target, *, agents: int, parallel: bool, played: Callable[[], None]
) -> None:
    """Play all runs as `agents` agents; agent k takes runs k, k + agents, … one after another.

    `played` is called after each request, from any thread. Agents take turns unless `parallel`.
    """
    lanes = [_Lane(list(players[k::agents]), target, played) for k in range(min(agents, len(players)))]
    if parallel:
        threads = [threading.Thread(target=lane.finish, daemon=True) for lane in lanes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return
    while lanes:
        lanes = [lane for lane in lanes if lane.step()]


@dataclass(slots=True)
class _Lane:
    """One agent."""

    waiting: list[Player]
    target: Target
    played: Callable[[], None]

    def step(self) -> bool:
        """Send one request; False when there is none left."""
        while self.waiting:
            if self.waiting[0].play(self.target):
                self.played()
                return True
            self.waiting.pop(0)
        return False

    def finish(self) -> None:
        """Send all that are left."""
        while self.step():
            pass
