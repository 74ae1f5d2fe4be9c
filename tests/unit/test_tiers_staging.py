"""Staging buffers: as many as there are, never waited for, never two owners."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from akashic_daemon.tiers.staging import Buffer, Staging


def taken(staging: Staging) -> Buffer:
    buffer = staging.take()
    assert buffer is not None
    return buffer


def test_as_many_buffers_as_there_are_can_be_taken_and_then_none() -> None:
    staging = Staging(3, 100)
    held = [taken(staging) for _ in range(3)]
    assert len({id(b.array) for b in held}) == 3
    assert (staging.take(), staging.free_count) == (None, 0)
    staging.give_back(held[1])
    assert staging.free_count == 1
    assert staging.take() is held[1]


def test_a_view_writes_into_the_buffer_and_no_further() -> None:
    staging = Staging(1, 100)
    buffer = taken(staging)
    buffer.array[:] = 7
    view = buffer.view(10)
    view[:] = b"0123456789"
    assert bytes(buffer.array[:10]) == b"0123456789"
    assert (buffer.array[10:] == 7).all()
    assert len(buffer.view(0)) == 0
    assert len(buffer.view(100)) == 100
    with pytest.raises(AssertionError, match="101 bytes in a buffer of 100"):
        buffer.view(101)


def test_giving_back_twice_or_a_foreign_buffer_is_an_error_of_ours_that_is_found() -> None:
    staging, other = Staging(2, 10), Staging(1, 10)
    buffer = taken(staging)
    staging.give_back(buffer)
    with pytest.raises(AssertionError, match="given back"):
        staging.give_back(buffer)
    with pytest.raises(AssertionError, match="given back"):
        staging.give_back(taken(other))
    assert staging.free_count == 2


def test_what_it_takes_is_told() -> None:
    assert Staging(4, 1000).total_bytes == 4000


def test_a_buffer_never_has_two_owners_among_threads() -> None:
    staging = Staging(3, 8)

    def work(seed: int) -> int:
        rng, clashes = random.Random(seed), 0
        for n in range(500):
            buffer = staging.take()
            if buffer is None:
                continue
            mark = (seed * 1000 + n).to_bytes(8, "little")
            buffer.view(8)[:] = mark
            sum(range(rng.randrange(200)))
            clashes += bytes(buffer.view(8)) != mark
            staging.give_back(buffer)
        return clashes

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(work, range(1, 5))) == 0
    assert staging.free_count == 3
