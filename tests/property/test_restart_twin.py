"""A service that was restarted, or killed, does what it would have done if only its KV had been lost."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from restarts import Interruption, tell
from watched_service import driven

SEEDS = range(14)


@cache
def run(how: Interruption, seed: int, turns: int) -> Sequence[object]:
    with tempfile.TemporaryDirectory(prefix="ak-") as folder, driven():
        return asyncio.run(asyncio.wait_for(tell(Path(folder) / how, how, seed, turns), 120))


@pytest.mark.parametrize("seed", SEEDS)
def test_each_request_takes_the_path_that_it_would_have_taken_without_the_restart(seed: int) -> None:
    how: Interruption = "kill" if seed % 2 else "restart"
    expected, got = run("swap", seed, 10), run(how, seed, 10)
    for number, (a, b) in enumerate(zip(expected, got, strict=True)):
        assert a == b, f"request {number} of seed {seed} after a {how}"


def test_the_seeds_cover_operations_edits_and_interruptions() -> None:
    told = [turn for seed in SEEDS for turn in run("swap", seed, 10)]
    kinds = [turn[2][0] for turn in told if isinstance(turn, tuple)]
    assert told.count("interrupted") > 30
    assert kinds.count("edited") > 2
    assert kinds.count("program") > 5
    assert sum(str(turn).startswith("fork") for turn in told) > 3
    assert sum("model_changed" in str(turn) for turn in told) > 5
