"""`akashic bench plan` at the terminal, and the process that times this machine, on a fake engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from akashic_cli.__main__ import main
from akashic_cli.bench import planning
from akashic_daemon.engine.fake import FakeEngine
from akashic_daemon.planner.machines import DESCRIBED, from_json
from akashic_daemon.speed import points
from akashic_daemon.speed.points import FULL, Budget, Timing
from akashic_daemon.speed.probe import probe
from akashic_daemon.types import SequenceId

ASKED = ["bench", "plan", "--model", "llama-3.1-8b", "--machine", "h100", "--context", "32768"]


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*ASKED, *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_plan_names_speed_bound_fit_and_tiers(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = said(capsys, "--batch", "4")
    assert plan["asked"]["fits"]
    assert plan["asked"]["tokens_per_s"] == pytest.approx(4 * plan["asked"]["tokens_per_s_each"])
    assert [row["tier"] for row in plan["tiers"]] == ["ram", "ssd"]
    assert main(ASKED) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0] == "\t".join(planning.COLUMNS)
    assert len(table) == 1 + len(plan["variants"]) + 1 + 1 + 2


def test_dropping_tool_results_shortens_what_is_read(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = said(capsys)["asked"]
    dropped = said(capsys, "--policy", "tool-rolling-drop:keep=4", "--tool-share", "0.5", "--result-tokens", "1000")
    assert dropped["asked"]["context_tokens"] == 16384 + 4000
    assert dropped["asked"]["tokens_per_s"] > whole["tokens_per_s"]
    assert main([*ASKED, "--policy", "window"]) == 2
    assert "evolve" in capsys.readouterr().err


def test_a_sweep_names_the_best_within_the_limits(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = said(capsys, "--sweep", "--memory-limit", "40GB", "--step-limit", "15", "--exact-only")
    assert found["best"]["step_s"] <= 0.015
    assert main([*ASKED, "--sweep", "--memory-limit", "1MB"]) == 0
    assert "no setup keeps to the limits" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--machine", "abacus"], "abacus"),
        (["--machine", "none.json"], "none.json"),
        (["--sweep", "--memory-limit", "much"], "--memory-limit"),
        (["--kv", "q9"], "q9"),
        (["--validate"], "only this one can be timed"),
    ],
)
def test_what_cannot_be_planned_is_a_usage_error(
    home: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main([*ASKED, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_machine_of_a_file_is_planned_with(tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASKED, "--show-machine"]) == 0
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({**json.loads(capsys.readouterr().out), "name": "mine", "stream": 1e9}))
    assert said(capsys, "--machine", str(path))["machine"]["name"] == "mine"


def test_probing_gives_a_machine_that_can_be_planned_with(tmp_path: Path) -> None:
    machine = probe(tmp_path)
    assert from_json(machine.to_json()) == machine
    assert list(tmp_path.iterdir()) == []


def test_every_round_times_each_point_that_fits_and_leaves_the_engine_empty() -> None:
    engine, told = FakeEngine(kv_cells=700, window_tokens=700), list[str]()
    timing = Timing(engine, FULL, Budget(3600.0, 3600.0, rounds=3), lambda point: told.append(str(point)))
    timing.run()
    fitting = [str(p) for p in FULL if p.sequences * (p.history_tokens + max(p.new_tokens, 8)) < 700]
    assert [str(p) for p in timing.timed()] == fitting
    assert 4 <= len(fitting) < len(FULL)
    assert sorted(told) == sorted(3 * fitting)
    assert timing.rounds == 3
    assert timing.left_out() == []
    assert all(point.seconds > 0 for point in timing.timed())
    assert all(engine.position_range(SequenceId(n)) is None for n in range(4))


def test_a_time_that_another_program_disturbed_counts_only_where_there_is_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    took_s = [1.0]

    def timed(work: Callable[[], None]) -> float:
        work()
        return took_s[0]

    monkeypatch.setattr(points, "_timed", timed)
    engine, others = FakeEngine(kv_cells=700, window_tokens=700), [0.0]

    def others_s() -> float:
        others[0] += 1e3 if took_s[0] < 5.0 else 0.0
        return others[0]

    timing = Timing(engine, FULL[:1], Budget(3600.0, 3600.0, rounds=1), others_s=others_s)
    timing.run()
    assert timing.disturbed() == timing.fitting != []
    assert timing.timed()[0].seconds == 1.0
    took_s[0], timing.rounds = 5.0, 0
    timing.run()
    assert timing.disturbed() == []
    assert timing.timed()[0].seconds == 5.0, "slower, yet nobody was beside it"


def test_timing_ends_with_its_budget_and_names_what_it_left_out() -> None:
    now_s = [0.0]

    def clock() -> float:
        now_s[0] += 10.0
        return now_s[0]

    engine = FakeEngine(kv_cells=700, window_tokens=700)
    once = Timing(engine, FULL, Budget(15.0, 1e6), clock=clock)
    once.run()
    assert once.rounds == 1
    assert once.left_out() == []
    cut = Timing(engine, FULL, Budget(15.0, 300.0), clock=clock)
    cut.run()
    assert all(p.is_fitted for p in cut.timed())
    assert 0 < len(cut.timed()) < len(cut.fitting)
    assert cut.left_out() == cut.fitting[len(cut.timed()) :], "what is fitted to comes first"


def test_validation_keeps_the_fitted_machine_for_later_plans(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted_to = [
        {"kind": kind, "new_tokens": new, "history_tokens": history, "sequences": 1, "seconds": s, "is_fitted": fitted}
        for kind, new, history, s, fitted in (
            ("decode", 1, 32, 0.020, True), ("decode", 1, 1024, 0.024, True),
            ("prefill", 256, 0, 1.0, True), ("prefill", 256, 1024, 1.2, True), ("decode", 1, 512, 0.022, False),
        )
    ]  # fmt: skip
    result: dict[str, Any] = {"machine": {**DESCRIBED["a100"].to_json(), "name": "here"}, "points": fitted_to}
    result |= {"model": "m", "path": "smollm2-135m", "kv_format": "f16", "threads": 2, "rounds": 3, "disturbed": []}
    monkeypatch.setattr(planning, "run_module", lambda *_a, **_k: result)
    assert main(["bench", "plan", "--validate", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["worst_held_out"] < 0.05
    assert main(["bench", "plan", "--validate"]) == 0
    assert "timed with 2 threads in 3 rounds" in capsys.readouterr().err
    assert main(["bench", "plan", "--show-machine"]) == 0
    assert json.loads(capsys.readouterr().out) == found["machine"]
