"""The evolution: a population judged on train runs, selected on the front of cost and loss, stopped when others don't gain.

Everything depends on the seed and the runs alone, so the same seed and number of generations give the same result; a
budget of time only decides how many there are. The state after each generation is plain values, from which it goes on exactly.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from akashic_daemon.errors import AkashicError, ConfigError
from akashic_daemon.evolve.drafts import Draft, Gene, hand_made, mutate
from akashic_daemon.evolve.fronts import Pair, area, front, ranked
from akashic_daemon.evolve.history import History
from akashic_daemon.evolve.judge import Prices, judge, total
from akashic_daemon.program.policy import parse_policy
from akashic_daemon.program.policy_check import Severity, check_policy

POPULATION = 24
BORN = 12
"""Policies that are proposed in a generation."""
PATIENCE = 8
_GAIN = 1e-4
_TRIES = 40
STATE_VERSION = 1
BUDGETS = ("time", "evaluations", "generations")
"""Why a search stopped that a larger budget takes further."""

Propose = Callable[["Search"], str | None]
"""Gives a policy's text, having seen the past results, or None when it has nothing to say."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A policy with its objectives on the train runs and on the runs that watch for over-fitting."""

    draft: Draft
    train: Pair
    watch: Pair


@dataclass(slots=True)
class Search:
    """One evolution. `watch` runs are never selected by; they only end it. generations: most of them, None for any number."""

    train: Sequence[History]
    watch: Sequence[History]
    window_tokens: int
    prices: Prices
    seed: int
    evaluations: int
    propose: Propose | None = None
    generations: int | None = None
    generation: int = 0
    judged: dict[str, Judged] = field(default_factory=dict)
    population: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    watched: list[float] = field(default_factory=list)
    stopped: str = ""
    _chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)

    def run(self) -> Iterator[int]:
        """Go on until the evaluations are spent or the watched runs stopped gaining; yield after each generation."""
        if not self.population:
            self.population = [judged.draft.source for d in hand_made().values() if (judged := self._judge(d))]
            self._look()
            yield self.generation
        while not self.stopped:
            # Whole generations only, so that a larger budget goes on as if it had been given at once.
            if len(self.judged) + BORN > self.evaluations:
                self.stopped = "evaluations"
                return
            if self.generations is not None and self.generation >= self.generations:
                self.stopped = "generations"
                return
            self._generation()
            yield self.generation

    @property
    def front(self) -> list[Judged]:
        """The policies that no other one beats in both, cheapest first."""
        every = list(self.judged.values())
        return [every[i] for i in front([judged.train for judged in every])]

    def _generation(self) -> None:
        self.generation += 1
        born: list[str] = []
        for draft in self._drafts():
            judged = self._judge(draft)
            if judged is not None:
                born.append(draft.source)
        if not born:
            self.stopped = "nothing new"
            return
        pool = list(dict.fromkeys([*self.population, *born]))
        order = ranked([self.judged[source].train for source in pool])
        self.population = [pool[i] for i in order[:POPULATION]]
        self._look()

    def _drafts(self) -> Iterator[Draft]:
        room = BORN
        if self.propose is not None:
            source = self.propose(self)
            if source is not None:
                yield Draft(source, (), "model")
                room -= 1
        made: set[str] = set()
        for _ in range(_TRIES * room):
            if len(made) >= room:
                return
            # Of two, the better ranked one: the population is in that order.
            at = min(self._chance.randrange(len(self.population)) for _ in range(2))
            parent = self.judged[self.population[at]].draft
            other = self.judged[self._chance.choice(self.population)].draft
            child = mutate(parent, other, self._chance)
            if child.source not in self.judged and child.source not in made:
                made.add(child.source)
                yield child

    def _judge(self, draft: Draft) -> Judged | None:
        """Judge a policy that is new and that `policy check` accepts."""
        if draft.source in self.judged:
            return None
        wrong = [
            f for f in check_policy(draft.source, window_tokens=self.window_tokens) if f.severity is Severity.ERROR
        ]
        if wrong:
            self.refused.append(f"{draft.origin}: {wrong[0].message}")
            return None
        try:
            policy = parse_policy(draft.source)
            found = Judged(draft, *(self._on(policy, runs) for runs in (self.train, self.watch)))
        except AkashicError as error:
            self.refused.append(f"{draft.origin}: {error.message}")
            return None
        self.judged[draft.source] = found
        return found

    def _on(self, policy: Any, runs: Sequence[History]) -> Pair:
        return total([judge(policy, run, self.window_tokens, self.prices) for run in runs])

    def _look(self) -> None:
        """Note what the front that train runs chose is worth on the watched ones; stop when that stays."""
        none = max(judged.watch[0] for judged in self.judged.values())
        corner = (none * 1.05, 1.0)
        chosen = [judged.watch for judged in self.front]
        self.watched.append(area(chosen, corner) / (corner[0] * corner[1]))
        best = max(range(len(self.watched)), key=lambda i: (self.watched[i] > max(self.watched) * (1 - _GAIN), -i))
        if len(self.watched) - 1 - best >= PATIENCE:
            self.stopped = "over-fitting: the watched runs gained nothing for so many generations"

    # -- resuming ------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return everything that the next generation depends on."""
        version, numbers, gauss = self._chance.getstate()
        return {
            "version": STATE_VERSION,
            "seed": self.seed,
            "generation": self.generation,
            "judged": [asdict(judged) for judged in self.judged.values()],
            "population": self.population,
            "refused": self.refused,
            "watched": self.watched,
            "stopped": self.stopped,
            "chance": [version, list(numbers), gauss],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state. Raises ConfigError when it can't be read."""
        try:
            if state["version"] != STATE_VERSION or state["seed"] != self.seed:
                raise ValueError(f"it is of version {state['version']} and seed {state['seed']}")
            self.judged = {entry["draft"]["source"]: _judged(entry) for entry in state["judged"]}
            self.generation, self.population = int(state["generation"]), list(state["population"])
            self.refused, self.watched = list(state["refused"]), list(state["watched"])
            self.stopped = "" if state["stopped"] in BUDGETS else str(state["stopped"])
            version, numbers, gauss = state["chance"]
            self._chance.setstate((version, tuple(numbers), gauss))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"going on with an evolution: its state can't be used: {error}", hint="begin anew with --fresh"
            ) from error


def _judged(entry: dict[str, Any]) -> Judged:
    draft = entry["draft"]
    genes = tuple(Gene(**gene) for gene in draft["genes"])
    train, watch = ((float(cost), float(lost)) for cost, lost in (entry["train"], entry["watch"]))
    return Judged(Draft(draft["source"], genes, draft["origin"]), train, watch)
