"""The arena against a dictionary of bytes: whatever is done in whatever order, payloads stay and budgets hold."""

from __future__ import annotations

import mmap
import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from akashic_daemon.tiers.arena import Arena, Slots

PAGE = mmap.PAGESIZE
SIZES = st.integers(0, 6 * PAGE) | st.sampled_from([0, 1, PAGE - 1, PAGE, PAGE + 1])


class ArenaMachine(RuleBasedStateMachine):
    """Reserves, writes, reads and frees; `held` knows what must be in which slots."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[tuple[Slots, bytes]] = []
        self.serial = 0
        self.most_used = 0
        """Slots that were used at once since it was empty."""

    @initialize(count=st.integers(0, 24), slot_pages=st.integers(1, 2))
    def make(self, count: int, slot_pages: int) -> None:
        self.arena = Arena(count * PAGE, slot_pages * PAGE)
        self.budget = count * PAGE

    @rule(size=SIZES)
    def store(self, size: int) -> None:
        needed = -(-size // self.arena.slot_bytes) * self.arena.slot_bytes
        used = sum(self.taken(s) for s, _ in self.held)
        slots = self.arena.reserve(size)
        assert (slots is not None) == (used + needed <= self.budget)
        if slots is not None:
            self.serial += 1
            data = random.Random(self.serial).randbytes(size)
            self.arena.write(slots, data)
            self.held.append((slots, data))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        slots, _ = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.arena.free(slots)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def overwrite(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.held) - 1))
        slots, old = self.held[at]
        self.arena.write(slots, old[::-1])
        self.held[at] = slots, old[::-1]

    @rule()
    def empty(self) -> None:
        for slots, _ in self.held:
            self.arena.free(slots)
        self.held = []
        assert not self.arena._rows.any()

    def taken(self, slots: Slots) -> int:
        return len(slots.numbers) * self.arena.slot_bytes

    @invariant()
    def every_payload_is_what_was_written_and_no_slot_is_shared(self) -> None:
        if not hasattr(self, "arena"):
            return
        numbers = [n for slots, _ in self.held for n in slots.numbers]
        assert len(numbers) == len(set(numbers))
        for slots, data in self.held:
            assert bytes(self.arena.read(slots, memoryview(bytearray(len(data))))) == data

    @invariant()
    def the_figures_are_exact_and_the_budget_holds(self) -> None:
        if not hasattr(self, "arena"):
            return
        arena = self.arena
        assert arena.used_bytes == sum(self.taken(s) for s, _ in self.held)
        assert arena.payload_bytes == sum(len(d) for _, d in self.held)
        assert arena.used_bytes <= arena.budget_bytes == self.budget
        self.most_used = max(self.most_used, arena.slots_used) if self.held else 0
        assert int(arena._rows.any(axis=1).sum()) <= self.most_used


ArenaMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_the_arena_is_a_dictionary_of_bytes = ArenaMachine.TestCase
