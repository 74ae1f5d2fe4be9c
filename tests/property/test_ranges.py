"""Sets of integers as ranges, held to Python's sets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from akashic_daemon.program.ranges import Ranges, intersect, normal, size, subtract, union

SETS = st.frozensets(st.integers(0, 40), max_size=25)


def ranges(values: frozenset[int]) -> Ranges:
    return normal((v, v + 1) for v in values)


@given(SETS, SETS)
def test_ranges_do_what_sets_do(a: frozenset[int], b: frozenset[int]) -> None:
    assert intersect(ranges(a), ranges(b)) == ranges(a & b)
    assert union(ranges(a), ranges(b)) == ranges(a | b)
    assert subtract(ranges(a), ranges(b)) == ranges(a - b)
    assert size(ranges(a)) == len(a)
