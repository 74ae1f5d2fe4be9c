"""Everything that moves blocks, in a random order: answers are the twin's, sums agree with counters, nothing is left over.

Hints are among it, right and wrong ones, early and late: they change no answer. `tests/bench/tiers_schedule.py` runs longer.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from random_schedule import run_schedule


@pytest.mark.parametrize("seeds", [(2,), (10, 19), (30, 36)])
def test_whatever_moves_when_answers_are_the_twins_and_nothing_drifts_or_leaks(
    tmp_path: Path, seeds: tuple[int, ...]
) -> None:
    """With seed 2 a request moved cells away that another, which waited for them, then computed over."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        counts += run_schedule(seed, tmp_path / str(seed), 400 if seed == 2 else 200)
    assert counts["answered"] > 30, counts
    assert counts["from ssd"], counts
    assert counts["wrong hints"] > 1, counts
    assert counts["hint"] > counts["wrong hints"], counts
