"""Long work is cut into slices: as large as may be, never larger, and nothing is left out."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from akashic_daemon.store.blocks.slices import SLICE_BYTES, SLICE_RECORDS, Pace, sliced


@given(st.lists(st.sampled_from((0, 1, SLICE_BYTES // 3, SLICE_BYTES, 2 * SLICE_BYTES)), max_size=30))
def test_a_slice_ends_only_where_the_next_item_has_no_room(sizes: list[int]) -> None:
    parts = list(sliced(sizes, lambda size: size))
    assert [size for part in parts for size in part] == sizes
    assert all(sum(part) <= SLICE_BYTES for part in parts if len(part) > 1)
    assert all(sum(part) + after[0] > SLICE_BYTES for part, after in pairwise(parts))


def test_a_slice_has_no_more_than_so_many_records() -> None:
    parts = list(sliced(range(2 * SLICE_RECORDS + 1), lambda _: 1))
    assert [len(part) for part in parts] == [SLICE_RECORDS, SLICE_RECORDS, 1]


def test_work_pauses_after_each_slice_of_records_or_bytes() -> None:
    paused: list[int] = []
    done = 0
    pace = Pace(lambda: paused.append(done))
    for size_bytes in [0] * SLICE_RECORDS + [SLICE_BYTES // 2] * 4:
        done += 1
        pace.did(size_bytes)
    assert paused == [SLICE_RECORDS, SLICE_RECORDS + 2, SLICE_RECORDS + 4]
