"""`bench agents` on a daemon of its own: what a policy drops isn't charged as read, and computes no token again."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from akashic_cli.bench.agents.figures import Objective, Price
from akashic_cli.bench.agents.strategies import Setting
from akashic_cli.bench.agents.sweep import Plan, Sweep
from akashic_cli.bench.agents.workload import Waits, episode_of
from akashic_cli.bench.own_daemon import OwnDaemon
from akashic_cli.bench.synthetic import make_run
from fake_daemon import ENTRY
from fake_service import register

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs Unix sockets")


def test_dropping_reads_less_than_everything_and_computes_no_more(tmp_path: Path) -> None:
    runs = [make_run(number, 200, 5) for number in range(2)]
    played = [episode_of(run, Waits(0.0, 0.0), most_turns=None, most_answer_tokens=3) for run in runs]
    plan = Plan(["none", "drop"], [2], False, Setting(keep=1), Price(1.0, 0.1, 5.0), Objective())
    with OwnDaemon(tmp_path, model=None, command=[sys.executable, str(ENTRY)]) as daemon:
        register(daemon.home, ["fake"])
        daemon.start({})
        sweep = Sweep(plan, played, daemon.target(named_sessions=True), lambda *_: None)
        sweep.run()
    none, drop = sweep.levels
    assert none["broken"] == drop["broken"] == []
    assert none["requests"] == drop["requests"] == 10
    assert none["dropped_tokens"] == 0 < drop["dropped_tokens"]
    assert drop["cached_tokens"] < none["cached_tokens"]
    # A whole history computed again would be thousands of bytes; a template's marks and blocks are a few.
    assert drop["computed_tokens"] < none["computed_tokens"] + 500
    assert drop["cost"] < none["cost"] + 500
