"""What ways to keep a history short come to by counting: no server, no model, and a cache that forgets nothing.

Two ways are comparable when they keep to the same bound: a threshold may be as high as one likes, and is cheap while nothing
reaches it. The bound here is what a drop needs at most of an episode's tokens in the cache; beside it stands the cheapest
threshold whose prompts, those for summaries too, never have more. Tokens are estimated from bytes, the same way for both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

from akashic_cli.bench.agents.figures import Price
from akashic_cli.bench.agents.strategies import Client, Setting, meaning
from akashic_cli.bench.agents.workload import Episode
from akashic_cli.bench.transcripts import Edit, JsonObject
from akashic_daemon.evolve.history import BYTES_PER_TOKEN

KEEPS = (1, 2, 4, 6, 8, 12)
THRESHOLDS = tuple(range(512, 8193, 128))
COLUMNS = ("DROP", "MOST TOKENS", "COST", "CHEAPEST WITHIN", "ITS COST", "RATIO", "EACH RUN'S BOUND", "RUNS")
_MARK_TOKENS = 4
"""What a template writes around a message, about."""


@dataclass(slots=True)
class Count:
    """What an episode came to. peak_tokens: the most that a prompt and its answer had in the cache."""

    computed_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    summaries: int = 0
    peak_tokens: int = 0

    def take(self, seen_tokens: int, new_tokens: int, answer_tokens: int) -> None:
        """Add a request that sees so many tokens, of which so many are new."""
        self.computed_tokens += new_tokens
        self.cached_tokens += seen_tokens - new_tokens
        self.output_tokens += answer_tokens
        self.peak_tokens = max(self.peak_tokens, seen_tokens + answer_tokens)

    def cost(self, price: Price) -> float:
        """Return what it costs."""
        return price.of(self.computed_tokens, self.cached_tokens, self.output_tokens)


def count(policy: str, episode: Episode, setting: Setting) -> Count:
    """Return what an episode comes to under a policy."""
    kind, its = meaning(policy, setting)
    return _dropping(episode, its.keep) if kind == "drop" else _sending(policy, episode, setting)


def _dropping(episode: Episode, keep: int) -> Count:
    """Count what the server's rolling drop comes to: each token is computed once, old results are seen no more."""
    found, sent = Count(), 0
    for turn in episode.turns:
        history = list(episode.messages[: turn.history])
        new = _tokens(history[sent:])
        found.take(max(new, _tokens(Edit("omit", keep).apply(history))), new, turn.answer_tokens)
        sent = turn.history
    return found


def _sending(policy: str, episode: Episode, setting: Setting) -> Count:
    """Count what a client's prompts come to: of each, what begins like one that was sent is in the cache."""
    found, client, cache = Count(), Client(policy, setting), _Cache()
    summary = "s" * round(setting.summary_tokens * BYTES_PER_TOKEN)

    def send(prompt: Sequence[JsonObject], answer_tokens: int) -> int:
        seen = _tokens(prompt)
        found.take(seen, seen - cache.take(prompt), answer_tokens)
        return seen

    def summarise(history: list[JsonObject]) -> None:
        if client.wants_summary(history):
            send(client.summary_request(history), setting.summary_tokens)
            client.summarised(history, summary)
            found.summaries += 1

    for number, turn in enumerate(episode.turns):
        history = list(episode.messages[: turn.history])
        if not client.is_early:
            summarise(history)
        client.sent(send(client.prompt(history), turn.answer_tokens))
        if client.is_early and number + 1 < len(episode.turns):
            summarise(history)
    return found


@dataclass(slots=True)
class _Cache:
    prompts: list[Sequence[JsonObject]] = field(default_factory=list)

    def take(self, prompt: Sequence[JsonObject]) -> int:
        """Keep a prompt and return how many tokens of its beginning an earlier one had."""
        # One before the newest is what the branch for a summary left.
        found = max((_tokens(list(_common(prompt, known))) for known in self.prompts[-2:]), default=0)
        self.prompts.append(prompt)
        return found


def _common(one: Sequence[JsonObject], other: Sequence[JsonObject]) -> Iterator[JsonObject]:
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            return
        yield mine


def _tokens(messages: Sequence[JsonObject]) -> int:
    return sum(_length(message) for message in messages)


def _length(message: JsonObject) -> int:
    calls = (call["function"] for call in message.get("tool_calls") or ())
    size_bytes = _bytes(str(message.get("content") or ""))
    size_bytes += sum(2 + _bytes(call["name"]) + _bytes(call["arguments"]) for call in calls)
    return _MARK_TOKENS + math.ceil(size_bytes / BYTES_PER_TOKEN)


@lru_cache(maxsize=4096)
def _bytes(text: str) -> int:
    return len(text.encode())


def equal_bounds(
    episodes: Sequence[Episode],
    setting: Setting,
    price: Price,
    keeps: Sequence[int] = KEEPS,
    thresholds: Sequence[int] = THRESHOLDS,
) -> list[dict[str, Any]]:
    """Return, for each number of results that a drop keeps, the cheapest threshold at the same bound, and the ratio of costs.

    `ratio`: one bound, one threshold for all episodes. `ratio_each`: each episode's own bound and its best threshold, over
    the `episodes_each` for which any threshold keeps to it. None where none does.
    """
    played = list({episode.name: episode for episode in episodes}.values())
    by_threshold = {t: [count(f"summarise:{t}", e, setting) for e in played] for t in thresholds}
    rows = []
    for keep in keeps:
        drops = [count(f"drop:{keep}", episode, setting) for episode in played]
        bound = max(found.peak_tokens for found in drops)
        cost = sum(found.cost(price) for found in drops)
        within = {
            t: sum(c.cost(price) for c in found)
            for t, found in by_threshold.items()
            if all(c.peak_tokens <= bound for c in found)
        }
        best = min(within, key=lambda t: (within[t], t)) if within else None
        each = [
            (mine.cost(price), min(its))
            for number, mine in enumerate(drops)
            if (its := _within(mine.peak_tokens, [found[number] for found in by_threshold.values()], price))
        ]
        rows.append(
            {
                "keep": keep,
                "bound_tokens": bound,
                "cost": cost,
                "drop": [asdict(found) for found in drops],
                "threshold": best,
                "summarise_cost": None if best is None else within[best],
                "ratio": None if best is None or not within[best] else cost / within[best],
                "ratio_each": sum(mine for mine, _ in each) / sum(its for _, its in each) if each else None,
                "episodes_each": len(each),
                "episodes": len(played),
            }
        )
    return rows


def _within(bound_tokens: int, counts: Sequence[Count], price: Price) -> list[float]:
    return [found.cost(price) for found in counts if found.peak_tokens <= bound_tokens]


def table_rows(rows: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return a row for each bound."""

    def shown(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f} x"

    return [
        (
            f"drop:{row['keep']}",
            f"{row['bound_tokens']:,}",
            f"{row['cost']:,.0f}",
            "none keeps to it" if row["threshold"] is None else f"summarise:{row['threshold']}",
            "-" if row["summarise_cost"] is None else f"{row['summarise_cost']:,.0f}",
            shown(row["ratio"]),
            shown(row["ratio_each"]),
            f"{row['episodes_each']} of {row['episodes']}",
        )
        for row in rows
    ]
