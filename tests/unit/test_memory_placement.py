"""Placement of records: what is found together lies together, and every layout holds the same records."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from akashic_daemon.memory.placement import (
    Layout,
    Proposal,
    bisected,
    edges_of,
    fan_out,
    is_due,
    propose,
)

_TOPICS = 8
_PER_TOPIC = 16


def _topic(number: int) -> list[int]:
    """Return the records of a topic: topics take turns, so that each is scattered over all blocks in time's order."""
    return [number + _TOPICS * n for n in range(_PER_TOPIC)]


def _found(seed: int, count: int) -> list[list[int]]:
    chance = random.Random(seed)
    return [chance.sample(_topic(chance.randrange(_TOPICS)), 6) for _ in range(count)]


def in_order(sizes_bytes: Sequence[int], block_bytes: int) -> Layout:
    """Return the layout of records of equal sizes written one after another."""
    of_block = block_bytes // sizes_bytes[0]
    return [
        list(range(first, min(first + of_block, len(sizes_bytes)))) for first in range(0, len(sizes_bytes), of_block)
    ]


def _sizes(layout: Layout, sizes: Sequence[int]) -> list[int]:
    return [sum(sizes[record] for record in block) for block in layout]


def test_records_that_are_found_together_come_into_few_blocks() -> None:
    sizes = [10] * (_TOPICS * _PER_TOPIC)
    layout = bisected(sizes, edges_of([(found, 1.0) for found in _found(1, 300)]), 10 * _PER_TOPIC + 20)
    assert fan_out(layout, _found(2, 50)) < 0.5 * fan_out(in_order(sizes, 10 * _PER_TOPIC), _found(2, 50))


_LISTS = st.integers(2, 60).flatmap(
    lambda count: st.tuples(
        st.lists(st.integers(1, 50), min_size=count, max_size=count),
        st.lists(st.lists(st.integers(0, count - 1), max_size=6), max_size=20),
    )
)


@given(_LISTS, st.integers(1, 200))
def test_a_layout_holds_each_record_once_in_blocks_that_are_not_too_large_each_in_the_order_of_time(
    given_records: tuple[list[int], list[list[int]]], block_bytes: int
) -> None:
    sizes, found = given_records
    layout = bisected(sizes, edges_of([(records, 1.0) for records in found]), block_bytes)
    assert sorted(record for block in layout for record in block) == list(range(len(sizes)))
    assert all(
        len(block) == 1 or size <= block_bytes for block, size in zip(layout, _sizes(layout, sizes), strict=True)
    )
    assert all(block == sorted(block) for block in layout)
    assert layout == bisected(sizes, edges_of([(records, 1.0) for records in found]), block_bytes)


def test_records_of_unlike_sizes_fill_their_blocks() -> None:
    chance = random.Random(5)
    sizes = [chance.randint(20, 400) for _ in range(_TOPICS * _PER_TOPIC)]
    layout = bisected(sizes, edges_of([(found, 1.0) for found in _found(1, 300)]), 6000)
    assert len(layout) <= 1.2 * sum(sizes) / 6000 + 1


def test_without_anything_found_the_order_of_time_stays() -> None:
    layout = bisected([10] * 8, edges_of([]), 20)
    assert [record for block in layout for record in block] == list(range(8))
    assert bisected([], edges_of([]), 20) == []


def test_a_layout_is_taken_when_results_that_it_was_not_made_from_touch_fewer_blocks() -> None:
    sizes = [10] * (_TOPICS * _PER_TOPIC)
    current = in_order(sizes, 10 * _PER_TOPIC)
    nearest = [[n for n in _topic(record % _TOPICS) if n != record][:10] for record in range(len(sizes))]
    assert propose(current, sizes, nearest, _found(3, 40), 200).is_accepted
    assert propose(current, sizes, nearest, [], 200).is_accepted


def test_a_layout_made_from_results_that_say_nothing_is_refused() -> None:
    chance = random.Random(4)
    sizes = [10] * 128
    logged = [chance.sample(range(128), 10) for _ in range(60)]
    proposal = propose(in_order(sizes, 160), sizes, [], logged, 160)
    assert not proposal.is_accepted
    assert not propose(in_order(sizes, 160), sizes, [], [], 160).is_accepted


@pytest.mark.parametrize(("after", "is_accepted"), [(9.5, True), (9.51, False)])
def test_five_per_cent_is_the_least_that_is_worth_writing_for(after: float, is_accepted: bool) -> None:
    assert Proposal([], 10.0, after).is_accepted == is_accepted


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=200))
def test_regrouping_whenever_it_is_due_writes_each_byte_less_than_three_times(added: list[int]) -> None:
    stored = written = regrouped = 0
    for size in added:
        stored += size
        written += size
        if is_due(stored, regrouped):
            written += stored
            regrouped = stored
    assert written < 3 * stored
