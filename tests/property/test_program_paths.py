"""Spans against the naive twin: the same visible tokens at the same positions, whatever the program."""

from __future__ import annotations

import random

import pytest

from akashic_daemon.program import oracle
from akashic_daemon.program.active import ActiveCache, active_cache
from akashic_daemon.program.path import Path
from paths_strategy import random_path


def _positions(state: ActiveCache) -> dict[int, int]:
    return {s.first + i: s.position + i for s in state.spans for i in range(s.length)}


@pytest.mark.parametrize("seed", range(40))
def test_spans_say_what_the_naive_twin_says_after_every_token(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(10):
        path = random_path(chance)
        for length in range(1, len(path) + 1):
            prefix = Path(path.tokens[:length], tuple(p for p in path.ops if p.offset < length))
            told = oracle.run(prefix)
            state = active_cache(prefix)
            assert _positions(state) == told.positions
            assert state.next_position == told.next_position
            before = active_cache(Path(path.tokens[: length - 1], tuple(p for p in path.ops if p.offset < length)))
            seen = {s.first + i: s.position + i for s in before.seen() for i in range(s.length)}
            assert seen | {length - 1: before.position} == told.views[-1].sees
