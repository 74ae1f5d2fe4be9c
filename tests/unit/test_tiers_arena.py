"""The RAM tier's memory: a hard budget, no fragmentation, pages that go back, and misuse that is found."""

from __future__ import annotations

import mmap
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from queue import Queue

import numpy as np
import pytest

from akashic_daemon.tiers.arena import Arena, Slots

PAGE = mmap.PAGESIZE


def reserved(arena: Arena, size_bytes: int) -> Slots:
    slots = arena.reserve(size_bytes)
    assert slots is not None
    return slots


def stored(arena: Arena, data: bytes) -> Slots:
    slots = reserved(arena, len(data))
    arena.write(slots, data)
    return slots


def read(arena: Arena, slots: Slots) -> bytes:
    return bytes(arena.read(slots, memoryview(bytearray(slots.size_bytes))))


def touched(arena: Arena) -> int:
    """Return how many slots' pages hold anything: those given back read as zeros."""
    return int(arena._rows.any(axis=1).sum())


@pytest.mark.parametrize("size", [0, 1, PAGE - 1, PAGE, PAGE + 1, 5 * PAGE + 17])
def test_a_payload_of_any_size_comes_back_whole(size: int) -> None:
    arena = Arena(8 * PAGE, PAGE)
    data = random.Random(size).randbytes(size)
    slots = stored(arena, data)
    buffer = bytearray(b"\xaa" * (size + 10))
    view = arena.read(slots, memoryview(buffer))
    assert bytes(view) == data
    assert buffer[size:] == b"\xaa" * 10
    assert len(slots.numbers) == arena.slots_used == -(-size // PAGE)


def test_arrays_are_taken_and_filled_as_well() -> None:
    arena = Arena(8 * PAGE, PAGE)
    data = np.arange(3 * PAGE, dtype=np.uint8)
    slots = reserved(arena, len(data))
    arena.write(slots, data)
    target = np.zeros(3 * PAGE, np.uint8)
    arena.read(slots, target)
    assert np.array_equal(target, data)


def test_what_does_not_fit_is_refused_before_anything_changes() -> None:
    arena = Arena(4 * PAGE, PAGE)
    kept = stored(arena, b"a" * 3 * PAGE)
    assert arena.reserve(PAGE + 1) is None
    assert (arena.used_bytes, arena.payload_bytes, arena.free_bytes) == (3 * PAGE, 3 * PAGE, PAGE)
    assert arena.reserve(PAGE) is not None
    assert arena.reserve(1) is None
    assert arena.reserve(100 * PAGE) is None
    assert read(arena, kept) == b"a" * 3 * PAGE


def test_whatever_is_free_in_total_can_be_reserved_at_once_however_scattered() -> None:
    arena = Arena(64 * PAGE, PAGE)
    held = [stored(arena, bytes([n]) * PAGE) for n in range(64)]
    for slots in held[::2]:
        arena.free(slots)
    scattered = stored(arena, b"s" * 32 * PAGE)
    assert read(arena, scattered) == b"s" * 32 * PAGE
    assert [read(arena, s)[0] for s in held[1::2]] == list(range(1, 64, 2))


def test_slots_are_whole_pages() -> None:
    assert Arena(10 * PAGE, 1).slot_bytes == PAGE
    assert Arena(10 * PAGE, PAGE + 1).slots_total == 5


def test_an_arena_that_empties_gives_its_pages_back() -> None:
    arena = Arena(8 * PAGE, PAGE)
    held = [stored(arena, b"x" * 2 * PAGE) for _ in range(3)]
    assert touched(arena) == 6
    for slots in held:
        arena.free(slots)
    assert touched(arena) == 0
    assert read(arena, stored(arena, b"y" * 8 * PAGE)) == b"y" * 8 * PAGE


def test_slots_that_were_touched_are_used_again_before_fresh_ones() -> None:
    arena = Arena(8 * PAGE, PAGE)
    kept = stored(arena, b"k")
    for _ in range(20):
        arena.free(stored(arena, b"x" * 2 * PAGE))
    assert touched(arena) == 3
    assert read(arena, kept) == b"k"


def test_an_arena_without_a_budget_takes_empty_payloads_only() -> None:
    arena = Arena(0, PAGE)
    assert arena.reserve(1) is None
    assert read(arena, stored(arena, b"")) == b""


def test_freeing_twice_and_using_what_was_freed_are_errors_of_ours_that_are_found() -> None:
    arena = Arena(4 * PAGE, PAGE)
    gone = stored(arena, b"x" * PAGE)
    arena.free(gone)
    taken = stored(arena, b"y" * PAGE)
    assert taken.numbers == gone.numbers
    for misuse in (
        lambda: arena.free(gone),
        lambda: read(arena, gone),
        lambda: arena.write(gone, b"z" * PAGE),
        lambda: arena.free(Slots(taken.numbers, taken.size_bytes)),
    ):
        with pytest.raises(AssertionError, match="freed"):
            misuse()
    assert read(arena, taken) == b"y" * PAGE


def test_payloads_and_buffers_of_the_wrong_size_are_refused() -> None:
    arena = Arena(4 * PAGE, PAGE)
    slots = reserved(arena, 100)
    with pytest.raises(AssertionError, match="99 bytes for slots of 100"):
        arena.write(slots, b"x" * 99)
    with pytest.raises(AssertionError, match="can't hold"):
        arena.read(slots, memoryview(bytearray(99)))


def test_one_thread_may_write_and_free_while_another_reads() -> None:
    arena = Arena(32 * PAGE, PAGE)
    ready: Queue[tuple[bytes, Slots] | None] = Queue()
    done: Queue[Slots] = Queue()

    def write() -> int:
        rng, written, out = random.Random(3), 0, 0
        while written < 400 or out:
            while not done.empty() or (out and written >= 400):
                arena.free(done.get())
                out -= 1
            if written < 400:
                data = rng.randbytes(rng.randrange(6 * PAGE))
                slots = arena.reserve(len(data))
                if slots is None:
                    arena.free(done.get())
                    out -= 1
                    continue
                arena.write(slots, data)
                ready.put((data, slots))
                written, out = written + 1, out + 1
        ready.put(None)
        return written

    def verify() -> int:
        wrong = 0
        while (item := ready.get()) is not None:
            data, slots = item
            wrong += read(arena, slots) != data
            done.put(slots)
        return wrong

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(2) as pool:
            writer, reader = pool.submit(write), pool.submit(verify)
            assert writer.result() == 400
            assert reader.result() == 0
    finally:
        sys.setswitchinterval(before)
    assert (arena.used_bytes, arena.payload_bytes) == (0, 0)
