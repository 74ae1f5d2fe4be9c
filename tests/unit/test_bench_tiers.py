"""`bench tiers`: what is read of the command line, the made-up runs, and the arithmetic of its figures."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import cast

import pytest

from akashic_cli.bench.own_daemon import OwnDaemon
from akashic_cli.bench.prompts import salted, shared_tokens
from akashic_cli.bench.replay import prepare
from akashic_cli.bench.request import Measured
from akashic_cli.bench.synthetic import make_run
from akashic_cli.bench.tier_samples import COLUMNS, Moved, Result, Sample, remarks, report, table_rows
from akashic_cli.bench.tiers import SCENARIOS, Plan, parse_only
from akashic_cli.bench.transcripts import Edit, Run
from akashic_daemon.errors import UsageError
from akashic_daemon.protocol.tiers import Moved as MovedOnWire
from akashic_daemon.protocol.tiers import Moves, TierReport, Wear


def test_scenarios_are_read_in_their_own_order_and_resident_brings_ram_along() -> None:
    assert parse_only("agents, ram") == ("ram", "agents")
    assert parse_only("resident") == ("ram", "resident")
    assert parse_only(",".join(SCENARIOS)) == SCENARIOS


@pytest.mark.parametrize("text", ["", "warm", "ram,,ssd", "ram,SSD"])
def test_a_scenario_that_does_not_exist_is_refused_with_the_list(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_only(text)
    assert "restart" in str(raised.value.hint)


def test_a_plan_knows_how_many_requests_it_will_send() -> None:
    assert Plan(repeat=3).requests == 3 * (6 + 4) + 30
    assert Plan(only=("ram", "resident"), repeat=2).requests == 2 * 3
    assert Plan(only=("agents",), agents=4, agent_turns=3).requests == 12


def test_made_up_runs_are_the_same_each_time_and_share_no_beginning() -> None:
    one, again, other = make_run(1, 900, 4), make_run(1, 900, 4), make_run(2, 900, 4)
    assert one == again
    assert one.messages[0] != other.messages[0]
    requests = list(one.requests(Edit("none")))
    assert len(requests) == 4
    assert all(longer[: len(shorter)] == shorter for shorter, longer in itertools.pairwise(requests))
    assert 900 * 0.5 < sum(len(m["content"].split()) for m in one.messages) * 1.4 < 900 * 1.3


def test_salt_changes_the_first_message_alone_whatever_form_its_content_has() -> None:
    text = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]
    assert salted(text, "a")[0]["content"] != salted(text, "b")[0]["content"]
    assert salted(text, "a")[1:] == text[1:]
    parts = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    assert [part["text"] for part in salted(parts, "a")[0]["content"]] == ["[a] ", "hi"]
    assert text[0]["content"] == "be kind"


class _Counting:
    def count_tokens(self, text: str) -> int:
        return len(text.split())


def test_what_runs_share_at_their_beginnings_counts_once() -> None:
    policy = {"role": "system", "content": "one two three"}
    runs = [
        Run(name, [policy, {"role": "user", "content": name}, {"role": "assistant", "content": "yes"}])
        for name in ("a", "b", "c")
    ]
    shared = shared_tokens(cast(OwnDaemon, _Counting()), prepare(runs, Edit("none"), None))
    assert shared == 2 * (len(["system", "one", "two", "three"]) + 8)


def test_two_reports_differ_by_what_moved_between_them() -> None:
    def told(n: int) -> TierReport:
        moves = Moves(
            demoted=MovedOnWire(bytes=10 * n),
            promoted_from_ram=MovedOnWire(bytes=n),
            promoted_from_ssd=MovedOnWire(bytes=2 * n),
        )
        return TierReport(moves=moves, wear=Wear(written_bytes=5 * n), stall_s=0.5 * n)

    assert Moved.between(told(1), told(4)) == Moved(30, 3, 6, 15, 1.5)


def sample(scenario: str, turn: int, seconds: float, prompt: int, tiers: dict[str, int], *, new: int = 0) -> Sample:
    """One request of which the tiers gave some tokens."""
    cached = sum(tiers.values())
    measured = Measured(seconds, seconds + 1, prompt, cached, 4, "", {"reused_by_tier": tiers})
    return Sample(scenario, "one", turn, new, prompt - cached + 4, measured)


def result_of(*samples: Sample, **moved: list[Moved]) -> Result:
    """A result of a model with 10 bytes of KV a token."""
    return Result(model="tiny", kv_bytes_per_token=10, samples=list(samples), moved=moved)


def test_a_scenario_is_told_by_its_median_and_compared_with_cold_and_resident() -> None:
    result = result_of(
        *(sample("cold", 0, seconds, 1000, {}, new=1000) for seconds in (9.0, 4.0, 5.0)),
        sample("resident", 2, 0.25, 1200, {"gpu": 1100}, new=90),
        sample("restart", 3, 0.5, 1300, {"ssd": 1000, "gpu": 20}, new=100),
        cold=[Moved(out_bytes=100, written_bytes=30_120)],
        restart=[
            Moved(ssd_bytes=900, stall_s=0.5),
            Moved(ram_bytes=100, ssd_bytes=100, stall_s=0.1),
            Moved(ssd_bytes=9),
        ],
    )
    told = report(result, {}, 1.0)
    cold, resident, restart = told["summary"]
    # What is compared was moved too: the requests of cold and restart, not those of resident.
    assert told["written_over_computed"] == pytest.approx(30_120 / ((3 * 1004 + 284) * 10), abs=1e-4)
    assert (cold["first_token_s"], cold["over_cold"], cold["over_resident"]) == (5.0, 1.0, 20.0)
    assert cold["written_over_computed"] == pytest.approx(30_120 / (3 * 1004 * 10), abs=1e-4)
    assert (restart["over_cold"], restart["over_resident"]) == (0.1, 2.0)
    assert (restart["computed_tokens"], restart["most_over_new"]) == (280, 180)
    assert (cold["back_bytes_per_s"], restart["back_bytes_per_s"]) == (None, 1900)
    assert restart["tokens_by_tier"] == {"gpu": 20, "ram": 0, "ssd": 1000}
    assert resident["moved"] is None
    assert resident["written_over_computed"] is None


def test_agents_that_take_turns_are_not_compared_and_their_first_turns_have_no_time() -> None:
    result = result_of(
        sample("cold", 0, 4.0, 1000, {}),
        sample("agents", 0, 30.0, 500, {}, new=500),
        sample("agents", 1, 2.0, 600, {"ram": 500}, new=100),
        sample("peer", 0, 40.0, 500, {}, new=500),
    )
    result.unique_tokens = 550
    _, agents, peer = report(result, {}, 1.0)["summary"]
    assert (agents["first_token_s"], agents["over_cold"], agents["new_tokens"]) == (2.0, None, 550)
    assert (peer["first_token_s"], peer["tokens_by_tier"], peer["moved"]) == (40.0, None, None)


def test_rounds_of_agents_are_counted_and_later_turns_that_computed_what_was_not_new() -> None:
    result = result_of(
        sample("agents", 0, 30.0, 500, {}, new=500),
        sample("agents", 0, 30.0, 700, {}, new=700),
        sample("agents", 1, 2.0, 600, {"ram": 400}, new=100),
        sample("agents", 1, 2.0, 900, {"ram": 671}, new=100),
    )
    told = report(result, {}, 1.0)
    (agents,) = told["summary"]
    assert agents["by_turn"] == [
        {"turn": 0, "computed_tokens": 1200, "new_tokens": 1200},
        {"turn": 1, "computed_tokens": 429, "new_tokens": 200},
    ]
    assert agents["turns_over_new"] == 1
    assert remarks(told) == [
        "agents: computed of new tokens by round: 1,200 of 1,200, 429 of 200; "
        "1 later turns computed a block more than was new"
    ]


def test_what_each_try_of_an_aborted_prompt_computed_is_told() -> None:
    aborted = replace(sample("aborted", 0, 1.0, 2000, {"gpu": 1500}, new=2000), tries=(512, 500, 500, 500))
    told = report(result_of(sample("cold", 0, 4.0, 1000, {}), aborted), {}, 1.0)
    assert told["summary"][1]["tries"] == [[512, 500, 500, 500]]
    assert told["summary"][0]["tries"] is None
    assert remarks(told) == ["aborted: the tries at one prompt computed 512, 500, 500, 500: 2,012 tokens"]


def test_the_table_has_a_cell_for_each_column_also_where_nothing_is_known() -> None:
    result = result_of(sample("cold", 0, 4.0, 1000, {}), sample("peer", 0, 4.0, 1000, {}))
    rows = table_rows(report(result, {"repeat": 1}, 1.0))
    assert [len(row) for row in rows] == [len(COLUMNS)] * 2
    assert rows[0][:4] == ("cold", "4.00 s", "1.000", "-")
    assert rows[1][6:] == ("-",) * 7


def test_what_ended_a_measurement_early_stands_in_its_result() -> None:
    result = result_of(sample("cold", 0, 4.0, 1000, {}))
    result.stopped = "interrupted"
    told = report(result, {"repeat": 3}, 1.5)
    assert (told["stopped"], told["repeat"], told["wall_s"], len(told["runs"])) == ("interrupted", 3, 1.5, 1)
