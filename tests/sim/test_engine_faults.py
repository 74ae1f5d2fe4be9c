"""An engine that fails at any call, with several sessions at once: the others go on, answers are exact, nothing is left.

Some calls of each kind; `tests/bench/engine_faults.py` tries all.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from faulty_engine import Busy, Faults, fail_and_check
from tiers_driver import small_blocks


def test_when_no_call_fails_no_request_does_and_every_kind_of_call_is_made(tmp_path: Path) -> None:
    faults, errors = fail_and_check(tmp_path / "store", None)
    assert not errors
    made = {"decode", "sampler", "sample", "share", "release", "save", "load", "export", "import"}
    assert made <= set(faults.calls), faults.calls


@pytest.mark.parametrize("first", [11, 29])
def test_a_call_that_fails_once_ends_at_most_the_request_that_made_it(tmp_path: Path, first: int) -> None:
    kinds: Counter[str] = Counter()
    for fail_at in range(first, 480, 113):
        faults, errors = fail_and_check(tmp_path / str(fail_at), fail_at)
        kinds += faults.failed
        assert len(errors) <= 1, errors
        if "share" in faults.failed or "release" in faults.failed:
            assert not errors, "who has done nothing wrong computes again"
    assert len(kinds) > 2, kinds


@pytest.mark.parametrize("first", [1, 25])
def test_while_all_calls_fail_every_request_ends_and_afterwards_all_goes_on(tmp_path: Path, first: int) -> None:
    said = 0
    for fail_at in range(first, 330, 75):
        faults, errors = fail_and_check(tmp_path / str(fail_at), fail_at, stays_broken=True)
        assert sum(faults.failed.values()) > 1, faults.failed
        said += len(errors)
        assert all("told to fail" in e or "no model is loaded" in e for e in errors), errors
    assert said


def test_a_bug_in_a_call_ends_what_runs_by_an_error_that_says_so_and_nothing_else(tmp_path: Path) -> None:
    said = 0
    for fail_at in range(20, 480, 150):
        _, errors = fail_and_check(tmp_path / str(fail_at), fail_at, is_bug=True)
        assert all("internal error" in e or "engine failed" in e for e in errors), errors
        said += len(errors)
    assert said


def test_half_shared_cells_are_never_computed_over(tmp_path: Path) -> None:
    """Whichever share fails in a prefix that two requests have, in the very step in which both compute."""
    kinds: Counter[str] = Counter()
    for fail_at in range(1, 5):
        faults = Faults(None, among=frozenset({"share"}))
        with small_blocks():
            busy = Busy(None, faults, seed=fail_at)
            trunk = busy.paths[0].then([1, 2, 3] * 6)
            busy.daemon.ask(trunk, max_tokens=1)
            faults.fail_at, faults.total = fail_at, 0
            for number in (0, 1):
                job, told = busy.daemon.submit(trunk.then([number] * 7), max_tokens=4)
                busy.open.append((number, job, told))
            busy.drain()
            busy.heal()
        kinds += faults.failed
    assert kinds["share"] > 1, kinds
