"""`akashic policy evolve`: what is counted, what is selected, and that a seed decides everything."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from akashic_cli.__main__ import main
from akashic_daemon.errors import ConfigError, TranscriptError, UsageError
from akashic_daemon.evolve import __main__ as evolving
from akashic_daemon.evolve.drafts import Draft, Gene, express, hand_made, mutate
from akashic_daemon.evolve.fronts import area, bootstrap, dominates, front, ranked
from akashic_daemon.evolve.history import History, history_of
from akashic_daemon.evolve.judge import Prices, judge
from akashic_daemon.evolve.proposer import ModelProposer
from akashic_daemon.evolve.search import Search
from akashic_daemon.evolve.split import split
from akashic_daemon.fidelity.turns import Run
from akashic_daemon.program.policy import parse_policy
from akashic_daemon.program.policy_check import Severity, check_policy
from akashic_daemon.program.weave import compile_ops
from akashic_daemon.trajectory.message import Message, Role

PRICES = Prices(1.0, 0.1, 5.0)
WINDOW = 4096


def agent(number: int, turns: int = 14) -> list[Message]:
    """An agent that reads files and names again what it read two results before."""
    chance = random.Random(number)
    messages = [Message(Role.SYSTEM, "be brief"), Message(Role.USER, f"fix bug {number} please")]
    names = [f"value_{number}_{i}" for i in range(turns)]
    for turn in range(turns):
        said = names[turn - 2] if turn >= 2 else "nothing"
        messages.append(Message(Role.ASSISTANT, f"I look at {said} now"))
        messages.append(Message(Role.TOOL, f"{names[turn]} " + "line of output " * chance.randint(5, 40)))
    messages.append(Message(Role.ASSISTANT, "done"))
    return messages


RUNS = [history_of(f"run-{n}", agent(n)) for n in range(6)]


def search(seed: int = 3, evaluations: int = 60, **given: Any) -> Search:
    return Search(RUNS[:3], RUNS[3:], WINDOW, PRICES, seed, evaluations, **given)


def ran(made: Search) -> Search:
    for _ in made.run():
        pass
    return made


@pytest.mark.parametrize("name", hand_made())
def test_a_run_is_counted_as_compiling_each_of_its_prompts_does(name: str) -> None:
    policy = parse_policy(hand_made()[name].source)
    messages = agent(7)
    whole = history_of("run", messages)
    found = judge(policy, whole, 10**6, PRICES)
    visible = 0
    for answer in whole.answers:
        part = history_of("part", messages[: answer + 1])
        compiled = compile_ops(part.layout, rules=policy.bound(10**6))
        visible += compiled.visible_tokens - part.layout.messages[answer].tokens
    assert found.computed_tokens + found.cached_tokens == visible
    assert found.output_tokens == sum(whole.layout.messages[a].tokens for a in whole.answers)
    assert found.cost == pytest.approx(found.computed_tokens + 0.1 * found.cached_tokens + 5 * found.output_tokens)


def test_a_word_is_lost_when_every_message_that_says_it_was_dropped() -> None:
    words = ["alpha_one", "beta_two"]
    messages = [
        Message(Role.USER, "go"), Message(Role.ASSISTANT, "calling"), Message(Role.TOOL, words[0]),
        Message(Role.ASSISTANT, "again"), Message(Role.TOOL, words[1]), Message(Role.ASSISTANT, " ".join(words)),
    ]  # fmt: skip
    history = history_of("run", messages)
    keep_one = parse_policy(express((Gene("keep", "tool", 1),)).source)
    found = judge(keep_one, history, WINDOW, PRICES)
    assert found.lost == pytest.approx((0 + 0 + 0.5) / 3)
    assert judge(parse_policy("policy none\n"), history, WINDOW, PRICES).lost == 0


def test_a_turn_that_no_longer_fits_is_computed_anew_and_loses_everything() -> None:
    history = RUNS[0]
    none = parse_policy("policy none\n")
    window = history.tokens // 2
    found = judge(none, history, window, PRICES)
    assert found.overflowing_turns > 0
    assert found.lost >= found.overflowing_turns / found.turns
    assert found.cost > judge(none, history, 10**6, PRICES).cost


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=30))
def test_a_front_dominates_all_others_and_none_of_its_own(pairs: list[tuple[int, int]]) -> None:
    points = [(float(a), float(b)) for a, b in pairs]
    chosen = front(points)
    for i in chosen:
        assert not any(dominates(point, points[i]) for point in points)
    for i in range(len(points)):
        assert points[i] in [points[j] for j in chosen] or any(dominates(points[j], points[i]) for j in chosen)
    assert sorted(ranked(points)) == list(range(len(points)))
    assert set(ranked(points)[: len(chosen)]) == set(chosen)
    assert area(points, (10.0, 10.0)) == area([points[i] for i in chosen], (10.0, 10.0))


def test_the_area_of_two_points_is_that_of_their_rectangles() -> None:
    assert area([(1.0, 3.0), (2.0, 1.0)], (4.0, 4.0)) == 3 * 1 + 2 * 2
    assert area([(5.0, 1.0)], (4.0, 4.0)) == 0


def test_an_interval_holds_the_value_and_is_a_point_when_all_runs_agree() -> None:
    values = [0.8, 0.9, 1.1, 0.7, 1.0]
    found = bootstrap(5, lambda at: sum(values[i] for i in at) / len(at), 1)
    assert found.value == pytest.approx(0.9)
    assert found.low < 0.9 < found.high
    same = bootstrap(4, lambda at: float(len(at)), 1)
    assert (same.low, same.value, same.high) == (4, 4, 4)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000))
def test_mutants_are_policies_that_check_accepts(seed: int) -> None:
    chance = random.Random(seed)
    drafts = list(hand_made().values())
    draft = chance.choice(drafts)
    for _ in range(6):
        draft = mutate(draft, chance.choice(drafts), chance)
        errors = [f for f in check_policy(draft.source, window_tokens=WINDOW) if f.severity is Severity.ERROR]
        assert errors == [], draft.source


def test_the_same_seed_gives_the_same_result_and_another_one_another() -> None:
    first, again, other = ran(search()), ran(search()), ran(search(seed=4))
    assert first.state() == again.state()
    assert first.state()["judged"] != other.state()["judged"]
    assert len(first.judged) == 56


def test_the_generations_that_a_time_allowed_give_the_same_search_again() -> None:
    timed = search(evaluations=400)
    for generation in timed.run():
        if generation == 3:
            timed.stopped = "time"
    again = ran(search(evaluations=400, generations=timed.generation))
    assert again.stopped == "generations"
    assert [j.draft.source for j in again.front] == [j.draft.source for j in timed.front]
    assert list(again.judged) == list(timed.judged)
    further = search(evaluations=400, generations=5)
    further.restore(json.loads(json.dumps(again.state())))
    assert [j.draft.source for j in ran(further).front] == [
        j.draft.source for j in ran(search(evaluations=400, generations=5)).front
    ]


def test_an_interrupted_search_goes_on_to_the_same_end() -> None:
    whole, part = ran(search()), search()
    steps = part.run()
    for _ in range(3):
        next(steps)
    resumed = search()
    resumed.restore(json.loads(json.dumps(part.state())))
    assert json.dumps(ran(resumed).state()) == json.dumps(whole.state())
    with pytest.raises(ConfigError, match="seed 3"):
        search(seed=5).restore(part.state())


@pytest.mark.parametrize("kept", ['{"inputs": {}}', '{"inputs": {}, "search": 3}', "[]", "{"])
def test_a_state_that_is_none_is_told_with_the_way_out(tmp_path: Path, kept: str) -> None:
    file = tmp_path / "state"
    file.write_text(kept)
    with pytest.raises(ConfigError) as caught:
        evolving._restore(search(), file, {})
    assert caught.value.hint == "begin anew with --fresh"


def test_the_front_beats_or_equals_every_hand_made_policy_on_the_train_runs() -> None:
    found = ran(search(evaluations=150))
    chosen = [judged.train for judged in found.front]
    hand = [judged.train for judged in found.judged.values() if judged.draft.origin == "hand-made"]
    assert len(hand) == len(hand_made())
    assert all(point in chosen or any(dominates(f, point) for f in chosen) for point in hand)
    assert any(dominates(f, point) for f in chosen for point in hand)


def test_a_search_whose_watched_runs_gain_nothing_ends_by_itself() -> None:
    made = search(evaluations=100_000)
    made.watch = [history_of("still", [Message(Role.USER, "hi"), Message(Role.ASSISTANT, "hello")])]
    assert "over-fitting" in ran(made).stopped
    assert len(made.judged) < 1000


def test_what_a_model_proposes_is_checked_and_never_more_than_read() -> None:
    said = iter(
        ["import os\nos.remove('x')", "policy candidate\nwhen tool_results > 3: drop tool[:-3]\n", "policy x\nwhen"]
    )
    made = search(evaluations=80, propose=lambda _search: next(said, None))
    ran(made)
    assert len(made.refused) == 2
    assert "model" in {judged.draft.origin for judged in made.judged.values()}


@contextmanager
def answering(*answers: object) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server that gives these answers, one a request, the last one for ever."""
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            answer = answers[min(len(asked), len(answers)) - 1]
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_proposing_model_sees_past_results_and_its_policy_takes_part() -> None:
    text = "Try this:\n```\npolicy mine\nparam keep = 3\nwhen tool_results > keep: drop tool[:-keep]\n```\n"
    with answering({"choices": [{"message": {"content": text}}]}) as (url, asked):
        proposer = ModelProposer(url, "m", "secret")
        found = ran(search(evaluations=20, propose=proposer))
    assert "cost" in asked[0]["messages"][1]["content"]
    assert any(judged.draft.origin == "model" for judged in found.judged.values())
    assert proposer.problems == []


def test_a_proposing_model_that_answers_garbage_is_given_up_and_said() -> None:
    with answering({"choices": []}, {"choices": [{"message": {"content": "no"}}]}, ["x"]) as (url, asked):
        proposer = ModelProposer(url, "m")
        found = ran(search(evaluations=60, propose=proposer))
    assert len(asked) == len(proposer.problems) == 3
    assert 48 <= len(found.judged) <= 60


def test_runs_are_split_by_the_seed_and_none_is_in_two_parts() -> None:
    runs = [Run(f"r{n}", tuple(agent(n, 2)), 0) for n in range(10)]
    parts = split(runs, [], 1)
    assert sorted(run.name for part in parts.values() for run in part) == sorted(run.name for run in runs)
    assert all(parts.values())
    assert split(runs[::-1], [], 1) == parts
    assert split(runs, [], 2) != parts
    with pytest.raises(TranscriptError, match="2 runs"):
        split(runs[:2], [], 1)


@pytest.mark.parametrize("text", ["1,2", "a,b,c", "0,1,1", "1,-1,1", "1,inf,1"])
def test_prices_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--prices"):
        Prices.parse(text)


def written(tmp_path: Path, count: int) -> list[str]:
    files = []
    for number in range(count):
        path = tmp_path / f"run-{number}.json"
        path.write_text(json.dumps({"messages": [{"role": m.role, "content": m.content} for m in agent(number, 8)]}))
        files.append(str(path))
    return files


def test_the_command_writes_a_policy_with_its_evidence_that_check_accepts(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "better.policy"
    asked = [
        "policy",
        "evolve",
        *written(tmp_path, 5),
        "--out",
        str(out),
        "--evaluations",
        "30",
        "--quality-turns",
        "0",
    ]
    assert main([*asked, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert {row["policy"] for row in result["held_out"]} >= set(hand_made())
    text = out.read_text()
    assert text == result["policy"]
    assert parse_policy(text).name == "better"
    assert result["verdict"] in text
    assert f"--generations {result['generations']} --fresh" in text
    assert main(["policy", "check", str(out)]) == 0
    assert main(asked) == 1
    assert "it exists" in capsys.readouterr().err
    assert main([*asked, "--force", "--fresh"]) == 0
    assert out.read_text() == text
    assert f"the same search again: {result['again']}" in capsys.readouterr().err
    assert main([*asked, "--force", *result["again"].split()]) == 0
    assert out.read_text() == text
    capsys.readouterr()
    larger = [*asked, "--force", "--json", "--evaluations", "56"]
    assert main(larger) == 0
    gone_on = capsys.readouterr()
    assert "going on" in gone_on.err
    assert main([*larger, "--fresh"]) == 0
    assert capsys.readouterr().out == gone_on.out, "a search that went on ends where a longer one does"
    assert main([*larger, "--prices", "2,1,5"]) == 2
    assert "--fresh" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [(["--out", "x.txt"], 2, "NAME.policy"), (["--prices", "1"], 2, "--prices"), (["none.json"], 2, "none.json")],
)
def test_what_cannot_be_evolved_is_said(
    tmp_path: Path,
    home: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["policy", "evolve", *written(tmp_path, 3), *arguments]) == code
    assert message in capsys.readouterr().err


def test_history_counts_tokens_of_calls_and_thinking_too() -> None:
    plain: History = history_of("a", [Message(Role.USER, "hi"), Message(Role.ASSISTANT, "x")])
    thinking = history_of("a", [Message(Role.USER, "hi"), Message(Role.ASSISTANT, "x", thinking="long " * 50)])
    assert thinking.tokens > plain.tokens + 50


def test_text_without_genes_is_changed_in_its_numbers() -> None:
    draft = Draft("policy candidate\nparam keep = 8\nwhen tool_results > keep: drop tool[:-keep]\n", (), "model")
    changed = mutate(draft, draft, random.Random(1))
    assert changed.source != draft.source
    assert changed.origin == "model, changed"
    assert parse_policy(changed.source).rules == parse_policy(draft.source).rules
