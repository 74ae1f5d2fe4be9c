"""What a policy costs on a recorded run and what it loses, by counting: no model, one walk over the history.

Cost is that of a service that keeps KV: new tokens are computed, visible old ones are read from the cache, answers are
written; each has a price. A turn that no longer fits the window is served as tools do it, by leaving out the oldest text
and computing all of what is left anew, and counts as having lost everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from akashic_daemon.errors import UsageError
from akashic_daemon.evolve.history import History
from akashic_daemon.program.ledger import Ledger
from akashic_daemon.program.message_ops import DropSelected, ReposAt
from akashic_daemon.program.policy import Policy
from akashic_daemon.program.weave import compile_ops


@dataclass(frozen=True, slots=True)
class Prices:
    """Price of a computed token, of a cached one that is read, and of a written one, in any unit."""

    computed: float = 1.0
    cached: float = 0.1
    output: float = 5.0

    @staticmethod
    def parse(text: str) -> Prices:
        """Read `COMPUTED,CACHED,OUTPUT`. Raises UsageError."""
        try:
            values = [float(part) for part in text.split(",")]
        except ValueError:
            values = []
        if len(values) != 3 or not all(0 <= value < 1e12 for value in values) or not values[0]:
            raise UsageError(
                f"reading --prices {text!r}: three numbers are needed, not negative, the first above 0",
                hint="computed, cached and written tokens, e.g. --prices 3,0.3,15",
            )
        return Prices(*values)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One policy on one run. lost: mean share of what answers needed that wasn't visible to them."""

    turns: int
    computed_tokens: int
    cached_tokens: int
    output_tokens: int
    overflowing_turns: int
    cost: float
    lost: float


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was visible before an answer: tokens, the next position, how many of the new messages, all of them by number."""

    tokens: int
    next_position: int
    new_tokens: int
    messages: frozenset[int]


def judge(policy: Policy, history: History, window_tokens: int, prices: Prices) -> Outcome:
    """Return what the policy comes to on a run."""
    seen = _watch(policy, history, window_tokens)
    computed = cached = output = overflowing = 0
    lost = 0.0
    for answer in history.answers:
        view = seen[answer]
        said = history.layout.messages[answer].tokens
        output += said
        if max(view.tokens, view.next_position) + said > window_tokens:
            overflowing += 1
            computed += max(0, window_tokens - said)
            lost += 1.0
            continue
        computed += view.new_tokens
        cached += view.tokens - view.new_tokens
        lost += _lost(history, answer, view)
    cost = computed * prices.computed + cached * prices.cached + output * prices.output
    turns = len(history.answers)
    return Outcome(turns, computed, cached, output, overflowing, cost, lost / turns if turns else 0.0)


def _watch(policy: Policy, history: History, window_tokens: int) -> dict[int, _Seen]:
    bound = policy.bound(window_tokens)
    seen: dict[int, _Seen] = {}
    before = [0]

    def rules(ledger: Ledger) -> Iterator[DropSelected | ReposAt]:
        if bound is not None:
            yield from bound(ledger)
        # Each operation was applied as it came, so the account now says what the answer sees.
        place = len(ledger.entries)
        visible = frozenset(ledger.visible["messages"])
        new = sum(ledger.tokens_of(message) for message in visible if message >= before[0])
        seen[place] = _Seen(ledger.visible_tokens, ledger.next_position, new, visible)
        before[0] = place + 1

    compile_ops(history.layout, rules=rules)
    return seen


def _lost(history: History, answer: int, view: _Seen) -> float:
    needs = history.needs[answer]
    total = sum(need.weight for need in needs)
    if not total:
        return 0.0
    return sum(need.weight for need in needs if not need.messages & view.messages) / total


def total(outcomes: Sequence[Outcome]) -> tuple[float, float]:
    """Return the sum of costs and the mean loss of a turn over runs."""
    turns = sum(outcome.turns for outcome in outcomes)
    lost = sum(outcome.lost * outcome.turns for outcome in outcomes)
    return sum(outcome.cost for outcome in outcomes), lost / turns if turns else 0.0
