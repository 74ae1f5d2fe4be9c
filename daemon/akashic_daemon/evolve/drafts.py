"""Policies as genes, so that a seeded mutator can change them, and the policies that people write by hand.

A gene is one rule with its numbers. Text that didn't come from genes (a model's proposal) is changed in its parameters.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

NAME = "candidate"
_MOST_GENES = 4
_COUNTS = {"tool": "tool_results", "assistant": "assistant_messages", "messages": "messages"}
_PARAM = re.compile(r"^(param \w+ = )(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Gene:
    """A rule: keep the newest of a kind, or what is younger than some turns, or first and newest messages.

    number: how many stay, or how many turns old is old; budget_percent: of the window, before the rule acts at all, 0 at once.
    """

    form: str
    kind: str
    number: int
    sink: int = 0
    budget_percent: int = 0


@dataclass(frozen=True, slots=True)
class Draft:
    """A policy's text, its genes when it has any, and who proposed it."""

    source: str
    genes: tuple[Gene, ...] = ()
    origin: str = "mutator"


REPOS = ("param threshold = 75% of window", "param gain = 10% of window")
_REPOS_RULE = "when next_position > threshold and free_positions >= gain: repos"


def express(genes: Sequence[Gene], *, origin: str = "mutator", name: str = NAME) -> Draft:
    """Return the policy that genes stand for."""
    parameters: list[str] = []
    rules: list[str] = []
    for number, gene in enumerate(genes):
        parameters.append(f"param n{number} = {gene.number}")
        gate = ""
        if gene.budget_percent:
            parameters.append(f"param budget{number} = {gene.budget_percent}% of window")
            gate = f"visible_tokens > budget{number} and "
        rules.append(f"when {gate}{_rule(gene, number, parameters)}")
    text = "\n".join([f"policy {name}", *parameters, *REPOS, "", *rules, _REPOS_RULE, ""])
    return Draft(text, tuple(genes), origin)


def _rule(gene: Gene, number: int, parameters: list[str]) -> str:
    count = _COUNTS[gene.kind]
    if gene.form == "age":
        return f"{count} > 0: drop {gene.kind} older than n{number} turns"
    if gene.form == "window":
        parameters.append(f"param sink{number} = {gene.sink}")
        return f"messages > sink{number} + n{number}: drop messages[sink{number}:-n{number}]"
    return f"{count} > n{number}: drop {gene.kind}[:-n{number}]"


def hand_made() -> dict[str, Draft]:
    """Return what people write: the search begins with these and must beat them."""

    def made(*genes: Gene) -> Draft:
        return express(genes, origin="hand-made")

    return {
        "keep-12": made(Gene("keep", "tool", 12)),
        "keep-8": made(Gene("keep", "tool", 8)),
        "keep-4": made(Gene("keep", "tool", 4)),
        "keep-2": made(Gene("keep", "tool", 2)),
        "older-than-8": made(Gene("age", "tool", 8)),
        "keep-4 past half": made(Gene("keep", "tool", 4, budget_percent=50)),
        "window": made(Gene("window", "messages", 24, sink=2, budget_percent=50)),
        "none": Draft(f"policy {NAME}\n", (), "hand-made"),
    }


def mutate(draft: Draft, other: Draft, chance: random.Random) -> Draft:
    """Return a changed policy; `other` lends genes for a crossing."""
    if not draft.genes:
        return _jitter_text(draft, chance)
    genes = list(draft.genes)
    steps: list[Callable[[list[Gene]], None]] = [
        lambda g: _change(g, chance),
        lambda g: _change(g, chance),
        lambda g: g.append(_random_gene(chance)),
        lambda g: _shorten(g, chance),
        lambda g: g.append(chance.choice(other.genes or draft.genes)),
    ]
    for _ in range(chance.choice((1, 1, 2))):
        chance.choice(steps)(genes)
    return express(list(dict.fromkeys(genes))[:_MOST_GENES])


def _shorten(genes: list[Gene], chance: random.Random) -> None:
    if len(genes) == 1:
        _change(genes, chance)
    else:
        genes.pop(chance.randrange(len(genes)))


def _change(genes: list[Gene], chance: random.Random) -> None:
    at = chance.randrange(len(genes))
    gene = genes[at]
    what = chance.randrange(4)
    if what == 0:
        genes[at] = replace(gene, budget_percent=chance.choice((0, 10, 20, 30, 40, 50, 60, 70)))
    elif what == 1 and gene.form == "keep":
        genes[at] = replace(gene, form="age")
    elif what == 1 and gene.form == "age":
        genes[at] = replace(gene, form="keep")
    elif what == 2 and gene.form == "window":
        genes[at] = replace(gene, sink=chance.randint(1, 6))
    else:
        genes[at] = replace(gene, number=_near(gene.number, chance))


def _near(number: int, chance: random.Random) -> int:
    moved = (
        number + chance.choice((-2, -1, 1, 2))
        if chance.random() < 0.6
        else round(number * chance.choice((0.5, 0.7, 1.5, 2)))
    )
    return min(200, max(1, moved))


def _random_gene(chance: random.Random) -> Gene:
    form = chance.choice(("keep", "keep", "age", "window"))
    budget = chance.choice((0, 0, 25, 50))
    if form == "window":
        return Gene("window", "messages", chance.randint(6, 40), chance.randint(1, 4), budget or 50)
    return Gene(form, chance.choice(("tool", "tool", "assistant")), chance.randint(1, 16), 0, budget)


def _jitter_text(draft: Draft, chance: random.Random) -> Draft:
    numbers = list(_PARAM.finditer(draft.source))
    if not numbers:
        return express((_random_gene(chance),))
    chosen = chance.choice(numbers)
    changed = _near(int(chosen[2]), chance)
    source = draft.source[: chosen.start(2)] + str(changed) + draft.source[chosen.end(2) :]
    return Draft(source, (), f"{draft.origin.removesuffix(', changed')}, changed")
