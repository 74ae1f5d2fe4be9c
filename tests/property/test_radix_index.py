"""The radix index over the fake engine's cells, against a twin that only remembers token lists."""

from __future__ import annotations

from array import array

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from akashic_daemon.cache.index import RadixIndex, common_length
from akashic_daemon.engine.base import BatchItem
from akashic_daemon.engine.fake import FakeEngine
from akashic_daemon.errors import EngineError
from akashic_daemon.types import SequenceId

Tokens = st.lists(st.integers(0, 2), min_size=1, max_size=9)


class IndexMachine(RuleBasedStateMachine):
    """Runs requests as the step loop does: start, take over, compute in pieces, finish; evict in between."""

    @initialize(cells=st.integers(6, 40), sequences=st.integers(2, 5))
    def make(self, cells: int, sequences: int) -> None:
        self.engine = FakeEngine(kv_cells=cells, max_sequences=sequences)
        self.index = RadixIndex(self.engine, cells_total=cells, sequences_total=sequences)
        self.sequences = sequences
        self.held: dict[SequenceId, list[int]] = {}
        self.ahead: dict[SequenceId, list[int]] = {}
        self.computed: set[tuple[int, ...]] = set()

    @rule(tokens=Tokens, shorter=st.integers(0, 2))
    def start(self, tokens: list[int], shorter: int) -> None:
        before = self.index.match(array("i", tokens)).length
        limit = max(0, len(tokens) - shorter)
        had_free = self.index.sequences_used < self.sequences
        try:
            sequence, length = self.index.start(array("i", tokens), limit)
        except EngineError:
            assert len(self.held) == self.sequences, "refused although a sequence was idle"
            return
        assert sequence not in self.held
        assert length <= min(before, limit)
        if had_free:
            assert length == min(before, limit), "computed tokens were not reused"
        self.held[sequence] = tokens[:length]
        self.ahead[sequence] = tokens[length:]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def advance(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.held)))
        path = self.held[sequence] + self.ahead[sequence]
        known = self.index.match(array("i", path)).length
        reach = self.index.advance(sequence, array("i", path), len(path))
        assert reach == max(known, len(self.held[sequence]))
        self.held[sequence], self.ahead[sequence] = path[:reach], path[reach:]

    @precondition(lambda self: self.held)
    @rule(data=st.data(), extra=Tokens)
    def compute(self, data: st.DataObject, extra: list[int]) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.held)))
        run = self.ahead[sequence][: len(extra)] or extra
        if not self.index.make_room(len(run)):
            assert self.index.evictable_cells() + self.index.cells_free < len(run)
            return
        start = len(self.held[sequence])
        self.engine.decode([BatchItem(sequence, run, start, logits=True)])
        self.index.extend(sequence, run)
        self.held[sequence] = self.held[sequence] + run
        self.ahead[sequence] = self.ahead[sequence][len(run) :]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.held)))
        tokens = array("i", self.held.pop(sequence))
        del self.ahead[sequence]
        self.index.finish(sequence)
        assert self.index.match(tokens).length == len(tokens), "finishing lost what was computed"

    @rule(cells=st.integers(1, 12))
    def make_room(self, cells: int) -> None:
        could = self.index.evictable_cells() + self.index.cells_free >= cells
        assert self.index.make_room(cells) == could
        if could:
            assert self.index.cells_free >= cells

    @rule(tokens=Tokens)
    def match_is_what_the_twin_knows_at_least_of_running_sequences(self, tokens: list[int]) -> None:
        found = self.index.match(array("i", tokens)).length
        assert found >= max((common_length(tokens, held) for held in self.held.values()), default=0)

    @invariant()
    def the_index_is_consistent_and_within_its_budget(self) -> None:
        if hasattr(self, "index"):
            self.index.check()
            assert 0 <= self.index.cells_used <= self.index.cells_total
            assert self.index.cells_used == self.engine.used_cells()

    @invariant()
    def running_sequences_hold_exactly_their_tokens(self) -> None:
        for sequence, tokens in getattr(self, "held", {}).items():
            cells = {position: cell.token for position, cell in self.engine.cells[sequence].items()}
            assert cells == dict(enumerate(tokens))

    @invariant()
    def idle_sequences_hold_exactly_a_path_of_the_tree(self) -> None:
        for number, cells in enumerate(getattr(self, "engine", FakeEngine(max_sequences=1)).cells):
            if cells and number not in self.held:
                tokens = array("i", [cells[p].token for p in sorted(cells)])
                assert sorted(cells) == list(range(len(cells)))
                assert self.index.match(tokens).length == len(tokens)


IndexMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestRadixIndex = IndexMachine.TestCase


def test_a_prompt_that_several_wait_for_is_computed_once() -> None:
    engine = FakeEngine(kv_cells=64, max_sequences=4)
    index = RadixIndex(engine, cells_total=64, sequences_total=4)
    prompt = array("i", [1, 2, 3, 4, 5])
    first, _ = index.start(prompt, 4)
    second, reused = index.start(prompt, 4)
    assert reused == 0
    engine.decode([BatchItem(first, prompt, 0, logits=True)])
    index.extend(first, prompt)
    assert index.advance(second, prompt, 4) == 4
    engine.decode([BatchItem(second, prompt[4:], 4, logits=True)])
    index.extend(second, prompt[4:])
    assert engine.used_cells() == index.cells_used == 5
    index.check()


def test_a_cold_branch_goes_before_a_warm_one() -> None:
    engine = FakeEngine(kv_cells=8, max_sequences=4)
    index = RadixIndex(engine, cells_total=8, sequences_total=4)
    for tokens in ([1, 1, 1], [2, 2, 2]):
        sequence, _ = index.start(array("i", tokens), 3)
        engine.decode([BatchItem(sequence, tokens, 0, logits=True)])
        index.extend(sequence, tokens)
        index.finish(sequence)
    sequence, _ = index.start(array("i", [1, 1, 1]), 3)
    index.finish(sequence)
    assert index.make_room(5)
    assert index.match(array("i", [1, 1, 1])).length == 3
    assert index.match(array("i", [2, 2, 2])).length == 0
