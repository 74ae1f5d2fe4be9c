"""`akashic bench agents`: waits from records, what each strategy sends, what is charged, and which rates are sustained."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from akashic_cli.__main__ import main
from akashic_cli.bench.agents import likelihood as likelihoods
from akashic_cli.bench.agents.counting import equal_bounds
from akashic_cli.bench.agents.figures import Objective, Price, against, figures, sustained_over
from akashic_cli.bench.agents.load import Load, Sent, Stage
from akashic_cli.bench.agents.measurement import sayings
from akashic_cli.bench.agents.strategies import ASK_FOR_SUMMARY, Client, Setting, directed, meaning, parse_names
from akashic_cli.bench.agents.sweep import Plan, Sweep
from akashic_cli.bench.agents.workload import Episode, Waits, episode_of
from akashic_cli.bench.llama_server import LlamaServer
from akashic_cli.bench.request import Measured, Target
from akashic_cli.bench.synthetic import make_run
from akashic_cli.bench.transcripts import JsonObject, Run
from akashic_daemon.errors import EngineError, UsageError

PRICE = Price(1.0, 0.1, 5.0)
NO_WAITS = Waits(0.0, 0.0)


class Server(ThreadingHTTPServer):
    """Streams three pieces for each request, remembers what was asked, and how many asked at once."""

    daemon_threads = True

    def __init__(self, *, fails: str = "") -> None:
        self.asked: list[JsonObject] = []
        self.fails = fails
        self.at_once = self.most_at_once = 0
        self.lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.server.lock:
            self.server.asked.append(body)
            self.server.at_once += 1
            self.server.most_at_once = max(self.server.most_at_once, self.server.at_once)
        failing = self.server.fails and self.server.fails in json.dumps(body)
        prompt = sum(len(json.dumps(message)) for message in body["messages"]) // 4
        events: list[JsonObject] = [{"choices": [{"delta": {"content": f"part {i} "}}]} for i in range(3)]
        events.append(
            {
                "choices": [],
                "usage": {
                    "prompt_tokens": prompt,
                    "completion_tokens": 3,
                    "prompt_tokens_details": {"cached_tokens": prompt // 2},
                },
            }
        )
        self.send_response(400 if failing else 200)
        self.end_headers()
        with self.server.lock:
            self.server.at_once -= 1
        if failing:
            self.wfile.write(b'{"error": {"code": "prompt_too_long", "message": "too long"}}')
            return
        for event in events:
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def episodes(count: int = 3, turns: int = 4) -> list[Episode]:
    return [episode_of(make_run(n, 600, turns), NO_WAITS, most_turns=None, most_answer_tokens=8) for n in range(count)]


def stage(server: Server, strategy: str = "none", setting: Setting | None = None) -> Stage:
    target = Target(server.url, None, "m", None, 1, {})
    return Stage(target, strategy, setting or Setting(), f"{strategy}-x", lambda: None)


def test_waits_are_the_recorded_times_between_a_call_and_its_result() -> None:
    messages: list[JsonObject] = [
        {"role": "user", "content": "go", "event_time_s": 0.0},
        {"role": "assistant", "content": "a" * 36, "event_time_s": 10.0},
        {"role": "tool", "content": "x", "event_time_s": 14.0},
        {"role": "assistant", "content": "b", "event_time_s": 15.0},
        {"role": "tool", "content": "y"},
        {"role": "assistant", "content": "c", "event_time_s": 90.0},
        {"role": "tool", "content": "z", "event_time_s": 999.0},
        {"role": "assistant", "content": "d"},
    ]
    found = episode_of(Run("run", messages), Waits(2.0, 20.0, 2.0), most_turns=None, most_answer_tokens=64)
    assert [turn.wait_s for turn in found.turns] == [0.0, 2.0, 1.0, 10.0]
    assert [turn.history for turn in found.turns] == [1, 3, 5, 7]
    assert found.turns[0].answer_tokens == 10
    assert found.timed_turns == 2
    assert all("event_time_s" not in message for message in found.messages)


def history(results: int, *, system: bool = True) -> list[JsonObject]:
    start: list[JsonObject] = [{"role": "system", "content": "s"}] if system else []
    start.append({"role": "user", "content": "task"})
    for number in range(results):
        start += [{"role": "assistant", "content": f"call {number}"}, {"role": "tool", "content": f"result {number}"}]
    return start


@pytest.mark.parametrize("system", [True, False])
def test_a_summary_takes_the_place_of_all_but_the_newest_messages_and_of_each_once(system: bool) -> None:
    client = Client("summarise", Setting(threshold_tokens=100, keep_messages=3))
    messages = history(4, system=system)
    client.sent(99)
    assert not client.wants_summary(messages)
    client.sent(100)
    assert client.wants_summary(messages)
    assert client.summary_request(messages) == [*messages, {"role": "user", "content": ASK_FOR_SUMMARY}]
    client.summarised(messages, "SUM")
    sent = client.prompt(messages)
    assert [m["role"] for m in sent] == ["system"] * system + ["user", "assistant", "tool"]
    assert "SUM" in sent[system]["content"]
    assert sent[-2:] == messages[-2:]
    longer = history(5, system=system)
    assert client.prompt(longer) == [*sent, *longer[-2:]]
    client.sent(100)
    assert client.wants_summary(longer)
    assert "SUM" in json.dumps(client.summary_request(longer))


def test_a_history_that_holds_nothing_to_summarise_is_left_alone() -> None:
    client = Client("summarise", Setting(threshold_tokens=10, keep_messages=6))
    client.sent(1000)
    assert not client.wants_summary(history(2))
    assert not Client("none", Setting(threshold_tokens=10)).wants_summary(history(20))


def test_pruning_empties_old_results_and_the_server_is_asked_to_drop_them() -> None:
    messages = history(4)
    pruned = Client("prune", Setting(keep=1)).prompt(messages)
    assert [m["content"] for m in pruned if m["role"] == "tool"].count("result 3") == 1
    assert sum("result" in str(m["content"]) for m in pruned if m["role"] == "tool") == 1
    target = Target("http://x", None, None, None, 1, {})
    ours = directed(target, "drop", Setting(keep=3, memory=True), is_ours=True)
    assert ours.extra["akashic"] == {"session": "$SESSION", "policy": "tool-rolling-drop:keep=3", "memory": True}
    assert directed(target, "none", Setting(), is_ours=False).extra == {}
    for name, setting in (("drop", Setting()), ("none", Setting(memory=True))):
        with pytest.raises(UsageError, match="only akashic"):
            directed(target, name, setting, is_ours=False)


def test_every_turn_of_every_episode_is_sent_once_and_shares_nothing_with_another(server: Server) -> None:
    load = stage(server).closed(episodes(3), 2)
    assert load.episodes == 3
    assert load.broken == []
    assert len(load.sent) == len(server.asked) == 12
    assert len({body["messages"][0]["content"] for body in server.asked}) == 3
    assert 1 <= server.most_at_once <= 2
    assert {len(body["messages"]) for body in server.asked} == {2, 4, 6, 8}


def test_summaries_are_charged_and_waited_for(server: Server) -> None:
    setting = Setting(threshold_tokens=1, keep_messages=2, summary_tokens=7)
    load = stage(server, "summarise", setting).closed(episodes(1), 1)
    found = figures(load, PRICE, Objective())
    assert found["summaries"] == sum(body["max_tokens"] == 7 for body in server.asked) > 0
    assert found["requests"] == 4
    assert found["output_tokens"] == 3 * (4 + found["summaries"])
    waits = [s for s in load.sent if not s.is_control]
    assert waits[-1].waited_s > waits[-1].measured.first_token_s, "the summary's time is missing"


def test_an_episode_that_an_error_ends_is_named_and_the_others_go_on(server: Server) -> None:
    server.fails = "Agent 1."
    load = stage(server).closed(episodes(3), 3)
    assert load.episodes == 3
    assert len(load.broken) == 1
    assert load.broken[0].startswith("synthetic-1: ")
    assert not figures(load, PRICE, Objective(1e5, 1e5))["keeps_objective"]


def sent(first_s: float, total_s: float, *, tokens: int = 11, dropped: int = 0, control: bool = False) -> Sent:
    measured = Measured(first_s, total_s, 1000, 600, tokens, "", {"dropped_tokens": dropped})
    return Sent("e", 0, control, measured, first_s)


def test_figures_are_those_of_hand() -> None:
    load = Load(10.0, [sent(1.0, 2.0), sent(3.0, 5.0, dropped=200), sent(9.0, 9.5, control=True)], 2)
    found = figures(load, PRICE, Objective(3.0, 0.2))
    assert (found["computed_tokens"], found["cached_tokens"], found["dropped_tokens"]) == (1200, 1600, 200)
    assert found["cost"] == 1200 + 160 + 5 * 33
    assert found["peak_tokens"] == 1011
    assert found["output_tokens_per_s"] == 2.2
    assert (found["first_token_p50_s"], found["first_token_p95_s"]) == (2.0, 3.0)
    assert found["token_p95_s"] == pytest.approx(0.2)
    assert found["latency_p95_s"] == 5.0
    assert found["keeps_objective"]
    assert not figures(load, PRICE, Objective(2.9, 0.2))["keeps_objective"]
    assert not figures(load, PRICE, Objective(3.0, 0.1))["keeps_objective"]


def test_policies_are_compared_with_summarising_at_the_same_level_unless_an_episode_broke_off() -> None:
    def row(policy: str, cost: float, broken: Sequence[str] = ()) -> dict[str, Any]:
        return {
            "policy": policy, "kind": "concurrency", "level": 2, "cost": cost, "output_tokens_per_s": cost,
            "latency_p95_s": cost, "broken": list(broken),
        }  # fmt: skip

    (found,) = against([row("drop", 5.0), row("summarise", 10.0)])
    ratios = {"level": 2, "cost": 0.5, "output": 0.5, "latency_p95": 2.0}
    assert found == {"policy": "drop", "base": "summarise", **ratios}
    assert against([row("drop", 5.0, ["x"]), row("summarise", 10.0)]) == []
    both = against([row("drop:4", 5.0), row("summarise:2048", 10.0), row("rewrite", 20.0)])
    assert [(r["base"], r["cost"]) for r in both] == [("summarise:2048", 0.5), ("rewrite", 0.25)]


def test_words_say_each_goal_beside_its_figure_and_which_policy_did_nothing() -> None:
    def row(policy: str, cost: float, summaries: int = 0, dropped: int = 0) -> dict[str, Any]:
        return {
            "policy": policy, "kind": "concurrency", "level": 2, "cost": cost, "output_tokens_per_s": cost, "broken": [],
            "latency_p95_s": cost, "summaries": summaries, "dropped_tokens": dropped, "peak_tokens": 700,
        }  # fmt: skip

    levels = [
        row("drop:4", 5.0),
        row("summarise", 10.0),
        row("summarise:300", 10.0, summaries=2),
        row("drop", 5.0, 0, 9),
    ]
    bounds = equal_bounds(episodes(1), Setting(summary_tokens=8), PRICE, [1, 100])
    found = {
        "policies": [level["policy"] for level in levels], "setting": asdict(Setting()), "levels": levels, "peers": {},
        "over_summarise": against(levels)[:1], "sustainable_per_min": {}, "likelihood": None, "equal_bound": bounds,
        "sustainable_over": [{"policy": "drop:4", "base": "summarise", "times": 2.0}],
    }  # fmt: skip
    said = list(sayings(found))
    assert "cost 0.50 x (goal 0.72 at most), output 0.50 x (goal 1.18), latency_p95 2.00 x (goal 1.5)" in said[0]
    assert any(line.startswith("counted at equal bounds: drop:") for line in said)
    assert any("2.00 x the rate of summarise (goal 1.9)" in line for line in said)
    idle = [line for line in said if line.startswith("warning: ")]
    assert [line.split()[1] for line in idle] == ["drop:4", "summarise"]
    assert "no prompt had 4,096 tokens (the longest 700)" in idle[1]


def test_rates_are_compared_with_those_of_summarising_ones_and_none_of_them_is_no_rate() -> None:
    found = sustained_over({"drop": 6.0, "none": None, "summarise": 2.0, "rewrite": None})
    times = {(row["policy"], row["base"]): row["times"] for row in found}
    assert times == {
        ("drop", "summarise"): 3.0, ("drop", "rewrite"): None, ("none", "summarise"): None, ("none", "rewrite"): None,
    }  # fmt: skip


@pytest.mark.parametrize("sustained", [0.0, 7.0, 1e9])
def test_the_sustained_rate_is_found_between_one_that_keeps_and_one_that_does_not(
    monkeypatch: pytest.MonkeyPatch, sustained: float
) -> None:
    tried: list[float] = []

    def closed(made: Stage, _episodes: Sequence[Episode], _count: int) -> Load:
        return Load(60.0, [sent(0.1, 0.2)], 10)

    def opened(made: Stage, _episodes: Sequence[Episode], per_s: float, _seed: int) -> Load:
        tried.append(per_s * 60)
        return Load(60.0, [sent(0.1 if per_s * 60 <= sustained else 99.0, 99.1)], 10)

    monkeypatch.setattr(Stage, "closed", closed)
    monkeypatch.setattr(Stage, "open", opened)
    plan = Plan(["none"], [1], True, Setting(), PRICE, Objective(1.0, 1e5))
    sweep = Sweep(plan, episodes(1), Target("http://x", None, None, None, 1, {}), lambda *_: None)
    sweep.run()
    found = sweep.sustainable["none"]
    kept = [rate for rate in tried if rate <= sustained]
    assert found == (max(kept) if kept else None)
    assert len(tried) <= 9
    if sustained == 7.0:
        assert found is not None
        assert 7.0 - found <= 5 / 4


def test_arrivals_play_all_episodes(server: Server) -> None:
    load = stage(server).open(episodes(3), 1e6, 1)
    assert (load.episodes, len(load.sent)) == (3, 12)


def test_the_command_compares_policies_on_another_server(
    home: Any, tmp_path: Any, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    command = [
        "bench",
        "agents",
        "--base-url",
        server.url,
        "--tool-latency",
        "0",
        "--episodes",
        "2",
        "--max-turns",
        "3",
    ]
    command += ["--policies", "none,prune,summarise", "--concurrency", "1,2", "--threshold", "64"]
    assert main([*command, "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert json.loads(out.read_text()) == found
    assert [(row["policy"], row["level"]) for row in found["levels"]] == [
        (policy, level) for level in (1, 2) for policy in ("none", "prune", "summarise")
    ]
    assert len(found["over_summarise"]) == 4
    assert found["equal_bound"] == [], "nothing was dropped, so there is nothing to compare"
    assert main(["bench", "agents", "--base-url", server.url]) == 2
    assert "only akashic" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["--policies", "nothing"], ["--policies", "none,none"], ["--concurrency", "0"], ["--slo", "1"], ["--prices", "x"]],
)
def test_options_that_mean_nothing_are_usage_errors(home: Any, arguments: list[str]) -> None:
    assert main(["bench", "agents", "--base-url", "http://127.0.0.1:9", *arguments]) == 2


def test_policy_names_are_read_in_their_order_and_carry_their_own_numbers() -> None:
    assert parse_names("drop, none") == ["drop", "none"]
    setting = Setting(keep=12, threshold_tokens=4096)
    assert meaning("drop:4+memory", setting) == ("drop", replace(setting, keep=4, memory=True))
    assert meaning("summarise:2048", setting) == ("summarise", replace(setting, threshold_tokens=2048))
    assert meaning("rewrite:512", setting) == ("rewrite", replace(setting, gate_tokens=512))
    assert meaning("prune", setting) == ("prune", setting)
    for wrong in ("none:3", "drop:x", "drop:", "drop:4+more", "summarise:2048,summarise:2048"):
        with pytest.raises(UsageError, match="--policies"):
            parse_names(wrong)


def test_a_rewritten_memory_is_written_while_the_tool_runs_and_its_rest_is_waited_for(server: Server) -> None:
    (episode,) = episodes(1, 5)
    setting = Setting(keep_messages=2, summary_tokens=7, gate_tokens=64)
    load = stage(server, "rewrite", setting).closed([episode], 1)
    assert load.broken == []
    controls = [s for s in load.sent if s.is_control]
    assert len(controls) == len(load.summaries) > 0
    for control in controls:
        at = load.sent.index(control)
        assert load.sent[at - 1].turn == control.turn - 1, "it is asked for right after an answer"
        follower = load.sent[at + 1]
        assert follower.turn == control.turn
        assert follower.waited_s > follower.measured.first_token_s, "no tool ran so long, so it was waited for"
    slow = replace(episode, turns=tuple(replace(turn, wait_s=0.3) for turn in episode.turns))
    patient = stage(server, "rewrite", setting).closed([slow], 1)
    assert patient.wall_s > 1.2
    assert len(patient.summaries) == len(load.summaries)


def test_answers_are_judged_after_what_was_sent_with_the_summaries_that_were_written(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = episodes(2, 5)
    setting = Setting(threshold_tokens=64, keep_messages=2)
    load = stage(server, "summarise", setting).closed([*made, made[0]], 1)
    asked: dict[str, Any] = {}

    def run_module(_module: str, arguments: list[str], _told: Any, *, doing: str) -> JsonObject:
        asked.update(json.loads(Path(arguments[0]).read_text()))
        views = {"full": figure(1.0), "drop:4": figure(1.1), "summarise": figure(1.5)}
        return {"model": "m", "left_out": 0, "runs": [{"run": e.name, "answers": 2, "views": views} for e in made]}

    def figure(nll: float) -> JsonObject:
        return {"nll": nll, "kl": 0.0, "agreement": 1.0, "tokens": 10}

    monkeypatch.setattr(likelihoods, "run_module", run_module)
    names = ["none", "drop:4", "summarise"]
    found = likelihoods.likelihood(made, names, setting, {"summarise": load.summaries}, 2, None, lambda _: None)
    assert asked["policies"] == {"drop:4": "tool-rolling-drop:keep=4"}
    assert [run["run"] for run in asked["runs"]] == [episode.name for episode in made]
    for number, run in enumerate(asked["runs"]):
        assert len(run["turns"]) == 2
        last = run["turns"][-1]
        sent = [body["messages"] for body in server.asked if f"Agent {number}." in json.dumps(body)]
        assert last["answer"] == made[number].turns[-1].history
        # Besides the mark that keeps one level's prompts from another's.
        assert last["prompts"]["summarise"][1:] in [messages[1:] for messages in sent]
        assert "part 2" in json.dumps(last["prompts"]["summarise"]), "the summary isn't there"
    assert [row["nll"] for row in found["policies"]] == [1.0, 1.1, 1.5]
    gaps = {row["policy"]: round(row["value"], 6) for row in found["over_summarising"]}
    assert gaps == {"none": -0.5, "drop:4": -0.4}
    assert len(likelihoods.table_rows(found)) == 3


def test_a_peer_plays_what_an_agent_can_do_by_itself_and_its_errors_end_only_its_episodes(
    home: Any, tmp_path: Any, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        hanging = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        listening.listen(8)
        command = ["bench", "agents", "--base-url", server.url, "--tool-latency", "0", "--episodes", "1"]
        command += ["--max-turns", "2", "--policies", "none,prune", "--concurrency", "1", "--json"]
        command += ["--peer", f"good={server.url}", "--peer", f"slow={hanging}", "--peer-timeout", "0.3"]
        assert main(command) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert [row["policy"] for row in found["levels"]] == ["none", "prune"]
    assert all(not row["broken"] for row in [*found["levels"], *found["peers"]["good"]["levels"]])
    assert all(row["broken"] for row in found["peers"]["slow"]["levels"])
    assert "warning: slow: synthetic-0" in shown.err
    assert main(["bench", "agents", "--policies", "drop", "--peer", f"good={server.url}"]) == 2
    assert "only akashic" in capsys.readouterr().err


def test_llama_cpp_is_a_peer_only_where_its_package_is(home: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for peer, message in (
        ("llama.cpp=/nowhere/python", "can't be run"),
        ("other", "NAME=URL"),
        ("llama.cpp=", "NAME=URL"),
    ):
        assert main(["bench", "agents", "--policies", "none", "--peer", peer]) == 2
        assert message in capsys.readouterr().err


def test_a_started_peer_that_dies_is_named_with_its_last_words(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no such model >&2\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(EngineError, match="no such model"), LlamaServer("m.gguf", str(python), threads=1):
        pass


def test_a_started_peer_says_where_it_is_and_ends_with_the_measurement(tmp_path: Path) -> None:
    python, ended = tmp_path / "python", tmp_path / "ended"
    python.write_text(f'#!/bin/sh\necho \'{{"url": "http://h/v1"}}\'\ncat\ntouch {ended}\n')
    python.chmod(0o755)
    with LlamaServer("m.gguf", str(python), threads=1) as peer:
        assert peer.url == "http://h/v1"
        assert not ended.exists()
    assert ended.exists()
