"""`bench agents`' counting: both ways to keep a history short, compared at the same bound, without a server."""

from __future__ import annotations

import json

import pytest

from akashic_cli.bench.agents.counting import count, equal_bounds, table_rows
from akashic_cli.bench.agents.figures import Objective, Price
from akashic_cli.bench.agents.measures import measures
from akashic_cli.bench.agents.strategies import Setting
from akashic_cli.bench.agents.sweep import Plan
from akashic_cli.bench.agents.workload import Episode, Waits, episode_of
from akashic_cli.bench.transcripts import JsonObject, Run

PRICE = Price(1.0, 0.1, 5.0)
SETTING = Setting(keep_messages=2, summary_tokens=40)


def episode(name: str, turns: int, result_words: int) -> Episode:
    messages: list[JsonObject] = [{"role": "system", "content": "rules " * 60}, {"role": "user", "content": "task"}]
    for turn in range(turns):
        messages.append({"role": "assistant", "content": f"I look at {name} {turn}"})
        messages.append({"role": "tool", "content": f"{turn} " + "result " * result_words})
    messages.append({"role": "assistant", "content": "done"})
    return episode_of(Run(name, messages), Waits(), most_turns=None, most_answer_tokens=8)


def test_a_drop_computes_each_token_once_and_reads_no_old_result() -> None:
    played = episode("a", 12, 50)
    whole, dropped = count("none", played, SETTING), count("drop:2", played, SETTING)
    assert dropped.computed_tokens == whole.computed_tokens < whole.peak_tokens
    assert dropped.output_tokens == whole.output_tokens == sum(turn.answer_tokens for turn in played.turns)
    assert dropped.cached_tokens < whole.cached_tokens
    assert dropped.peak_tokens < whole.peak_tokens
    assert count("drop:100", played, SETTING) == whole


def test_a_summary_is_charged_with_its_prompt_its_words_and_what_follows_it() -> None:
    played = episode("a", 12, 50)
    whole, cut = count("none", played, SETTING), count("summarise:600", played, SETTING)
    assert cut.summaries > 1
    assert cut.output_tokens == whole.output_tokens + 40 * cut.summaries
    # The prompt for a summary ends what was cached, so all that it adds is its own words; then the rest is read anew.
    assert cut.computed_tokens > whole.computed_tokens + 40 * cut.summaries
    assert count("summarise:100000", played, SETTING) == whole
    early = count("rewrite:300", played, SETTING)
    assert early.summaries > 1


def test_at_equal_bounds_no_threshold_needs_more_tokens_than_the_drop_does_and_none_that_keeps_to_it_is_cheaper() -> (
    None
):
    played = [episode("a", 12, 50), episode("b", 20, 30)]
    thresholds = range(300, 3000, 100)
    counted = {t: [count(f"summarise:{t}", e, SETTING) for e in played] for t in thresholds}
    (row,) = equal_bounds([*played, played[0]], SETTING, PRICE, [4], thresholds)
    assert row["bound_tokens"] == max(found["peak_tokens"] for found in row["drop"])
    assert row["episodes"] == 2, "an episode that is played twice counts once"
    costs = {
        t: sum(c.cost(PRICE) for c in found)
        for t, found in counted.items()
        if max(c.peak_tokens for c in found) <= row["bound_tokens"]
    }
    assert row["summarise_cost"] == min(costs.values()) == costs[row["threshold"]]
    assert row["ratio"] == pytest.approx(row["cost"] / row["summarise_cost"])
    best = [
        min(counted[t][n].cost(PRICE) for t in thresholds if counted[t][n].peak_tokens <= drop["peak_tokens"])
        for n, drop in enumerate(row["drop"])
    ]
    assert row["ratio_each"] == pytest.approx(row["cost"] / sum(best))
    json.dumps(row)


def test_a_runs_measures_put_dropping_beside_each_summarising_policy_with_its_goal() -> None:
    level = {"kind": "concurrency", "level": 2, "output_tokens_per_s": 3.0, "latency_p95_s": 4.0, "cost": 5.0}
    row = {"level": 2, "cost": 0.5, "output": 1.0, "latency_p95": None}
    result = {
        "levels": [{**level, "policy": "drop"}],
        "sustainable_per_min": {"drop": 2.0},
        "over_summarise": [{**row, "policy": name, "base": "summarise"} for name in ("drop", "none")],
        "sustainable_over": [{"policy": "drop", "base": "rewrite", "times": 2.0}],
    }
    # Twelve results stay, so the drop leaves all of this run.
    plan = Plan(["drop", "summarise"], [2], True, SETTING, PRICE, Objective())
    found = {m.name: m for m in measures(result, plan, [episode("a", 12, 50)])}
    assert found["cost, drop, 2 agents"].goal is None
    ratio = found["cost, drop against summarise, 2 agents"]
    assert (ratio.value, ratio.goal, ratio.meets_goal) == (0.5, 0.72, True)
    assert found["output, drop against summarise, 2 agents"].meets_goal is False
    assert found["sustained, drop against rewrite"].meets_goal is True
    assert not any("none against" in name for name in found)
    assert not any(name.startswith("latency p95, shorter") for name in found), "it wasn't measured"
    counted = [m for name, m in found.items() if "counted" in name]
    assert [m.goal for m in counted] == [0.72]


def test_a_bound_that_no_threshold_keeps_to_is_said() -> None:
    (row,) = equal_bounds([episode("a", 6, 10)], SETTING, PRICE, [1], [100_000])
    assert (row["ratio"], row["ratio_each"], row["episodes_each"]) == (None, None, 0)
    ((name, *_rest, keeps),) = table_rows([row])
    assert (name, keeps) == ("drop:1", "0 of 1")
    assert "none keeps to it" in _rest
