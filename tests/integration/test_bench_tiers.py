"""`bench tiers` with daemons of its own on a tiny model: what it asks for, what it keeps, what it leaves behind."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from akashic_cli.app import app
from akashic_cli.bench.tiers import Plan, Suite
from tiny_gguf import Shape, write_tiny_gguf

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs Unix sockets")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model whose window takes the made-up runs, which are long in its bytes."""
    return write_tiny_gguf(tmp_path / "tiny.gguf", shape=Shape(layers=1, window=8192))


def left_processes(folder: Path) -> list[str]:
    """Return the processes whose home lies in a folder."""
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"AKASHIC_HOME={folder}/".encode() in environment.read_bytes():
                found.append(environment.parent.name)
        except OSError:
            continue
    return found


def test_each_scenario_is_measured_once_a_session_and_nothing_is_left_behind(model: Path, tmp_path: Path) -> None:
    work, done = tmp_path / "w", []
    work.mkdir()
    only = ("cold", "ram", "resident", "restart", "aborted", "agents")
    plan = Plan(only, repeat=2, tokens=300, agents=3, agent_turns=2, model=str(model), folder=work)
    suite = Suite(plan, lambda scenario, count: done.extend([scenario] * count))
    suite.run()
    by_scenario = {name: [s for s in suite.result.samples if s.scenario == name] for name in only}
    assert {name: len(samples) for name, samples in by_scenario.items()} == dict.fromkeys(only[:-1], 2) | {"agents": 6}
    assert len(done) == plan.requests
    assert all(s.measured.cached_tokens < 40 for s in by_scenario["cold"])
    # Where KV that isn't resident comes from is decided by measured costs; who wasn't demoted is asked for no more.
    assert all(s.measured.computed_tokens <= s.new_tokens + 128 for s in by_scenario["resident"])
    for s in by_scenario["aborted"]:
        assert len(s.tries) == 4
        # What a try computed between the last look and its end isn't in its count, so the sum may lack steps, not have more.
        assert s.tries[-1] < s.measured.prompt_tokens
        assert sum(s.tries) <= s.measured.prompt_tokens + 3 * 128
    for s in suite.result.samples:
        assert s.measured.akashic is not None
        assert sum(s.measured.akashic["reused_by_tier"].values()) == s.measured.cached_tokens
    assert suite.result.model == "tiny"
    assert suite.result.kv_bytes_per_token > 0
    assert suite.result.stopped is None
    assert not suite.result.problems
    assert not list(work.iterdir())
    assert not left_processes(work)


def test_an_interruption_keeps_what_was_measured_and_ends_the_daemon(model: Path, tmp_path: Path) -> None:
    work = tmp_path / "w"
    work.mkdir()

    def told(_scenario: str, count: int) -> None:
        if count:
            raise KeyboardInterrupt

    suite = Suite(Plan(("cold", "ram"), repeat=2, tokens=300, model=str(model), folder=work), told)
    with pytest.raises(KeyboardInterrupt):
        suite.run()
    assert [s.scenario for s in suite.result.samples] == ["cold"]
    assert suite.result.stopped == "interrupted"
    assert not list(work.iterdir())
    assert not left_processes(work)


def test_an_interruption_among_agents_keeps_the_turns_that_they_had(model: Path, tmp_path: Path) -> None:
    done: list[str] = []

    def told(scenario: str, count: int) -> None:
        done.extend([scenario] * count)
        if len(done) == 4:
            raise KeyboardInterrupt

    plan = Plan(("agents",), tokens=300, agents=3, agent_turns=2, model=str(model), folder=tmp_path)
    suite = Suite(plan, told)
    with pytest.raises(KeyboardInterrupt):
        suite.run()
    assert [s.turn for s in suite.result.samples] == [0, 0, 0, 1]
    assert len({s.session for s in suite.result.samples}) == 3


def test_the_command_writes_its_figures_and_fails_where_a_run_is_too_short(model: Path, tmp_path: Path) -> None:
    run = tmp_path / "run.json"
    turns = [{"role": "user", "content": "hello " * 60}, {"role": "assistant", "content": "hi"}]
    run.write_text(json.dumps({"messages": turns * 3}))
    out = tmp_path / "out.json"
    command = ["bench", "tiers", "--model", str(model), "--repeat", "2", "--transcripts", str(run), "--out", str(out)]
    shown = CliRunner().invoke(app, [*command, "--only", "ram", "--json"])
    assert shown.exit_code == 0, shown.output
    told = json.loads(shown.stdout)
    assert [row["scenario"] for row in told["summary"]] == ["cold", "ram"]
    assert len(json.loads(out.read_text())["runs"]) == len(told["runs"]) == 4
    refused = CliRunner().invoke(app, [*command, "--only", "ram,resident,ssd,hinted"])
    assert refused.exit_code != 0
    assert "3 requests, 5 are needed" in str(refused.exception)
