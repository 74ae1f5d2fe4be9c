"""The end of an evolution: the chosen policy beside keep-12 and hand-made ones, on runs that nothing was chosen by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from akashic_daemon.evolve.drafts import Draft, hand_made
from akashic_daemon.evolve.fronts import bootstrap
from akashic_daemon.evolve.history import History
from akashic_daemon.evolve.judge import Outcome, Prices, judge
from akashic_daemon.evolve.search import Judged, Search
from akashic_daemon.program.policy import parse_policy

BASELINE = "keep-12"
COMPANION = "keep-4"
"""The hand-made policy that a model reads on held-out runs besides the baseline and the chosen one."""
_SHOWN_FRONT = 5
LOST_MARGIN = 0.02
"""More loss than keep-12's by which a policy still counts as no worse, when no model judged."""
NLL_MARGIN = 0.02
"""The same in nats a token, when one did: twice what Drop costs against prefilling anew in the project's measurements."""

Scores = Mapping[str, Mapping[str, Mapping[str, float]]]
"""run -> policy -> figures of fidelity."""


def candidates(search: Search) -> dict[str, Draft]:
    """Return what is compared at the end: the baseline, hand-made policies, and some of the front, spread over it."""
    front = [judged for judged in search.front if judged.draft.origin != "hand-made"]
    step = max(1, -(-len(front) // _SHOWN_FRONT))
    shown = front[::step]
    base = search.judged[hand_made()[BASELINE].source]
    safe = next((judged for judged in front if _loses_no_more(judged, base)), None)
    if safe is not None and safe not in shown:
        shown.append(safe)
    return {**hand_made(), **{f"evolved-{n + 1}": judged.draft for n, judged in enumerate(shown)}}


def readable(drafts: Mapping[str, Draft]) -> list[str]:
    """Return which policies a model reads: the evolved ones, and of hand-made ones those that they are compared with."""
    hand = hand_made()
    return [name for name in drafts if name in (BASELINE, COMPANION) or name not in hand]


def _loses_no_more(judged: Judged, base: Judged) -> bool:
    """Tell if a policy keeps what answers need about as well as the baseline, on the runs that are chosen by."""
    return all(
        mine[1] <= its[1] + LOST_MARGIN for mine, its in ((judged.train, base.train), (judged.watch, base.watch))
    )


def choose(search: Search, drafts: Mapping[str, Draft], scores: Scores | None) -> str:
    """Return the cheapest policy that is no worse than the baseline on the train and watched runs; perhaps the baseline."""
    base = search.judged[drafts[BASELINE].source]

    def no_worse(name: str, judged: Judged) -> bool:
        if scores is None:
            return _loses_no_more(judged, base)
        return _mean_nll(scores, name) <= _mean_nll(scores, BASELINE) + NLL_MARGIN

    # One that a window cuts off loses everything there, whatever a model says of the turns that fit.
    known = {n: search.judged[d.source] for n, d in drafts.items() if d.source in search.judged}
    fitting = {n: j for n, j in known.items() if n == BASELINE or no_worse(n, j)}
    return min(fitting, key=lambda n: (fitting[n].train[0] + fitting[n].watch[0], n != BASELINE, n))


def _mean_nll(scores: Scores, name: str) -> float:
    values = [run[name]["nll"] for run in scores.values()]
    return sum(values) / len(values)


def held_out(
    drafts: Mapping[str, Draft],
    runs: Sequence[History],
    window_tokens: int,
    prices: Prices,
    seed: int,
    scores: Scores | None,
) -> list[dict[str, Any]]:
    """Return a row for each policy: cost over the baseline's, loss, and quality, with intervals over runs."""
    found = {
        name: [judge(parse_policy(draft.source), run, window_tokens, prices) for run in runs]
        for name, draft in drafts.items()
    }
    base = found[BASELINE]
    return [
        {
            "policy": name,
            "origin": drafts[name].origin,
            "source": drafts[name].source,
            **_sums(mine),
            "cost_over_keep_12": _ratio(mine, base, seed),
            "lost_over_keep_12": _difference(mine, base, seed),
            **({} if scores is None else _quality(scores, name, seed)),
        }
        for name, mine in found.items()
    ]


def _sums(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    turns = sum(o.turns for o in outcomes)
    return {
        "cost": sum(o.cost for o in outcomes),
        "computed_tokens": sum(o.computed_tokens for o in outcomes),
        "cached_tokens": sum(o.cached_tokens for o in outcomes),
        "output_tokens": sum(o.output_tokens for o in outcomes),
        "overflowing_turns": sum(o.overflowing_turns for o in outcomes),
        "turns": turns,
        "lost": sum(o.lost * o.turns for o in outcomes) / turns if turns else 0.0,
    }


def _ratio(mine: Sequence[Outcome], base: Sequence[Outcome], seed: int) -> dict[str, float]:
    def value(at: Sequence[int]) -> float:
        return sum(mine[i].cost for i in at) / sum(base[i].cost for i in at)

    return bootstrap(len(mine), value, seed).to_json()


def _difference(mine: Sequence[Outcome], base: Sequence[Outcome], seed: int) -> dict[str, float]:
    def value(at: Sequence[int]) -> float:
        turns = sum(base[i].turns for i in at)
        return sum((mine[i].lost - base[i].lost) * base[i].turns for i in at) / turns

    return bootstrap(len(mine), value, seed).to_json()


def _quality(scores: Scores, name: str, seed: int) -> dict[str, Any]:
    runs = [run for run in scores.values() if name in run]
    if not runs:
        return {}

    def over(figure: str, other: str) -> dict[str, float]:
        gaps = [run[name][figure] - run[other][figure] for run in runs]
        return bootstrap(len(gaps), lambda at: sum(gaps[i] for i in at) / len(at), seed).to_json()

    agreed = [run[name]["agreement"] for run in runs]
    return {
        "nll_over_full": over("nll", "full"),
        "nll_over_keep_12": over("nll", BASELINE),
        "agreement": bootstrap(len(agreed), lambda at: sum(agreed[i] for i in at) / len(at), seed).to_json(),
    }


def verdict(row: Mapping[str, Any]) -> str:
    """Say in a sentence what the chosen policy is worth on held-out runs."""
    cost = row["cost_over_keep_12"]
    span = f"{cost['value']:.3f} x (95 %: {cost['low']:.3f} to {cost['high']:.3f})"
    if row["policy"] == BASELINE:
        return "keep-12 is not beaten: nothing cheaper was as good on the runs that were chosen by"
    quality = row.get("nll_over_keep_12")
    gap, margin, unit = (
        (quality, NLL_MARGIN, "nats a token") if quality else (row["lost_over_keep_12"], LOST_MARGIN, "of needed words")
    )
    told = f"{gap['value']:+.4f} {unit} (95 %: {gap['low']:+.4f} to {gap['high']:+.4f})"
    if cost["high"] >= 1:
        return f"keep-12 is not beaten for certain: cost {span} of its, quality {told}"
    if gap["value"] > margin:
        return f"cheaper but worse on held-out runs: cost {span} of keep-12's, quality {told}"
    return f"beats keep-12 on held-out runs: cost {span} of its, quality {told}"


def policy_file(name: str, row: Mapping[str, Any], evidence: Sequence[str]) -> str:
    """Return the chosen policy as a file that calls itself `name`, its evidence in comments."""
    _, _, body = str(row["source"]).partition("\n")
    return "\n".join([*(f"# {line}" for line in evidence), f"policy {name}", body.rstrip("\n"), ""])
