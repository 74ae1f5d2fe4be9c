"""Bars: lengths in proportion, and nothing that is there goes unseen."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from akashic_cli.render.bars import cells_of
from akashic_cli.render.context import FREE, FULL, PART, STRIP_CELLS, strip
from akashic_daemon.protocol.context import ContextMessage, ContextView

counts = st.lists(st.integers(0, 10_000), min_size=1, max_size=5)


@given(counts, st.integers(1, 80))
def test_every_part_that_is_there_is_seen_and_nothing_else(parts: list[int], width: int) -> None:
    cells = cells_of(parts, sum(parts), width)
    assert [bool(cell) for cell in cells] == [bool(part) for part in parts]


@given(counts, st.integers(8, 80))
def test_the_whole_is_as_long_as_asked_when_there_is_room_for_all_parts(parts: list[int], width: int) -> None:
    assert sum(cells_of(parts, sum(parts), width)) == (width if sum(parts) else 0)


def test_parts_are_in_proportion() -> None:
    assert cells_of([50, 25, 25], 100, 40) == [20, 10, 10]
    assert cells_of([50, 0, 1], 102, 32) == [15, 0, 1]
    assert cells_of([0, 0], 0, 32) == [0, 0]


def _strip(next_position: int, *ranges: tuple[int, int]) -> str:
    message = ContextMessage(index=0, role="user", positions=list(ranges))
    return strip(ContextView(session="s", model="m", window_tokens=1, messages=[message], next_position=next_position))


def test_the_strip_shows_each_position_of_a_short_context() -> None:
    assert _strip(6, (0, 2), (3, 4)) == FULL * 2 + FREE + FULL + FREE * 2
    assert _strip(0) == ""


@given(st.integers(1, 5000), st.data())
def test_the_strip_is_full_where_all_positions_are_held_and_free_where_none_is(end: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, end - 1))
    last = data.draw(st.integers(first, end - 1))
    drawn = _strip(end, (first, last + 1))
    cells = min(end, STRIP_CELLS)
    assert len(drawn) == cells
    for cell in range(cells):
        held = [first <= p <= last for p in range(end) if p * cells // end == cell]
        assert drawn[cell] == (FULL if all(held) else PART if any(held) else FREE)
