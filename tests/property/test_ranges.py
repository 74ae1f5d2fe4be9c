"""Sets of integers as ranges, held to Python's sets."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from akashic_daemon.program.ranges import Ranges, intersect, normal, size, subtract, union

SETS = st.frozensets(st.integers(0, 40), max_size=25)


def ranges(values: frozenset[int]) -> Ranges:
    return normal((v, v + 1) for v in values)


@given(SETS, SETS)
@example(frozenset({1, 2}), frozenset({3, 4}))
@example(frozenset({3, 4}), frozenset({1, 2}))
@example(frozenset({1}), frozenset({3}))
def test_ranges_do_what_sets_do(a: frozenset[int], b: frozenset[int]) -> None:
    assert intersect(ranges(a), ranges(b)) == ranges(a & b)
    assert union(ranges(a), ranges(b)) == ranges(a | b)
    assert subtract(ranges(a), ranges(b)) == ranges(a - b)
    assert size(ranges(a)) == len(a)
