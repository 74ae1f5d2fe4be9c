"""Agents that edit, prune, fork, program and leave at will, on caches too small for them: every answer is the twin's."""

from __future__ import annotations

from collections import Counter
from pathlib import Path as FilePath

import pytest

from agents_fuzz import run_world

SEEDS = 64
GROUPS = 8


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS // GROUPS))
def test_whatever_agents_do_they_see_their_own_text_and_hear_the_twins_answer(home: FilePath, first: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, first + SEEDS // GROUPS):
        counts.update(run_world(seed, home / str(seed), turns=6).counts)
    assert {"plain", "program", "edited", "left early", "PromptTooLong"} <= set(counts), counts
