"""Room for a longer text: enough of it, at the place that was asked for, and nobody moves who needn't."""

from __future__ import annotations

import random

import pytest

from akashic_daemon.program.active import ActiveCache, Span, active_cache
from akashic_daemon.program.path import Drop, Insert, Path, PathBuilder, Shift
from akashic_daemon.program.room import SPARE_POSITIONS, make_room
from paths_strategy import random_path


def ends_at(state: ActiveCache, position: int) -> int | None:
    """Return the index of the token just below a position."""
    return next((s.first + s.length - 1 for s in cut(state, position) if s.end == position), None)


def cut(state: ActiveCache, position: int) -> list[Span]:
    parts = [s for s in state.spans if not s.position < position < s.end]
    for span in state.spans:
        if span.position < position < span.end:
            border = span.first + position - span.position
            parts += [span.cut(span.first, border), span.cut(border, span.first + span.length)]
    return sorted(parts, key=lambda s: s.position)


def place_after(state: ActiveCache, index: int | None) -> int:
    span = next((s for s in state.spans if index is not None and s.first <= index < s.first + s.length), None)
    return 0 if span is None or index is None else span.position + index - span.first + 1


def fewest(state: ActiveCache, place: int, lacking: int) -> int:
    """Return the fewest tokens next to the place that can step aside together, tried one by one."""
    taken = {p for s in state.spans for p in range(s.position, s.end)}
    above = [p for p in sorted(taken) if p >= place]
    below = [p for p in sorted(taken, reverse=True) if p < place]
    counts = [n for n in range(1, len(above) + 1) if n == len(above) or above[n] - above[n - 1] > lacking]
    counts += [n for n in range(1, len(below) + 1) if below[n - 1] - (below[n] if n < len(below) else -1) > lacking]
    return min(counts)


@pytest.mark.parametrize("seed", range(60))
def test_there_is_room_and_the_fewest_tokens_moved_for_it(seed: int) -> None:
    chance = random.Random(seed)
    tried = 0
    for _ in range(20):
        state = active_cache(random_path(chance, steps=chance.randint(1, 9)))
        if state.inserting or not state.spans:
            continue
        place = chance.randint(0, state.spans[-1].end)
        room, lacking = state.room_at(place), chance.randint(1, 6)
        before = ends_at(state, place)
        if room is None or (before is None and place):
            continue
        shift = make_room(state, place, lacking)
        after = state.apply(shift)
        assert state.moved_by(shift) == fewest(state, place, lacking)
        assert [s.first for s in cut(after, -1)] == [s.first for s in after.spans], "the order is another"
        assert after.indices == state.indices
        found = after.room_at(place_after(after, before))
        assert found is not None
        assert found >= room + lacking
        tried += 1
    assert tried > 3


def test_the_next_longer_text_finds_the_room_that_was_spared() -> None:
    state = active_cache(Path(PathBuilder().tokens).then(range(1000)))
    first = make_room(state, 200, 6)
    assert first == Shift(200, 1000, 6 + SPARE_POSITIONS)
    state = state.apply(first).apply(Insert(200, 6)).append(6)
    second = make_room(state, 206 + SPARE_POSITIONS + 40, 6)
    assert state.moved_by(second) == 40
    assert state.apply(second).next_position == state.next_position


def test_what_precedes_moves_down_into_dropped_text_when_that_is_less() -> None:
    state = active_cache(Path(PathBuilder().tokens).then(range(300))).apply(Drop(((100, 120),)))
    assert make_room(state, 130, 20) == Shift(120, 130, -20)
    assert make_room(state, 130, 3) == Shift(120, 130, -20), "what the gap has to spare"
    assert make_room(state, 130, 21) == Shift(130, 300, 21 + SPARE_POSITIONS)
