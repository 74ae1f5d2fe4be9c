"""Spans against the naive twin: the same visible tokens at the same positions, whatever the program."""

from __future__ import annotations

import json
import random

import pytest

from akashic_daemon.program import oracle
from akashic_daemon.program.active import ActiveCache, active_cache, has_tail_gap
from akashic_daemon.program.path import Path, op_from_json, op_to_json
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


@pytest.mark.parametrize("seed", range(20))
def test_operations_come_back_from_storage_as_they_were_and_take_part_in_the_digest(seed: int) -> None:
    path = random_path(random.Random(seed))
    stored = json.loads(json.dumps([op_to_json(placed) for placed in path.ops]))
    assert tuple(op_from_json(data) for data in stored) == path.ops
    if path.ops:
        assert Path(path.tokens, path.ops[1:]).digest() != path.digest()
    assert Path(path.tokens[:-1], path.ops).digest() != path.digest()


@pytest.mark.parametrize("seed", range(40))
def test_a_tail_gap_is_where_a_token_does_not_follow_the_highest_one_that_it_sees(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(10):
        path = random_path(chance)
        gaps = [
            view
            for index, view in enumerate(oracle.run(path).views)
            if len(view.sees) > 1 and max(p for i, p in view.sees.items() if i != index) + 1 < view.position
        ]
        assert has_tail_gap(path) == bool(gaps)
