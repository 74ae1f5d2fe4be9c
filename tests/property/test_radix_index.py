"""The radix index over the fake engine's cells: every program ends in the contents that the naive twin says."""

from __future__ import annotations

import random
from array import array

import pytest

from akashic_daemon.cache.index import NoRoom, RadixIndex
from akashic_daemon.engine.base import BatchItem
from akashic_daemon.engine.fake import FakeEngine, contents
from akashic_daemon.errors import EngineError
from akashic_daemon.program.active import active_cache
from akashic_daemon.program.path import Path
from akashic_daemon.types import SequenceId
from paths_strategy import random_path


class Driver:
    """Runs requests as the step loop does, on a small cache, and checks every content against the twin."""

    def __init__(self, seed: int, *, cells: int, sequences: int) -> None:
        self.chance = random.Random(seed)
        self.engine = FakeEngine(kv_cells=cells, max_sequences=sequences)
        self.index = RadixIndex(self.engine, cells_total=cells, sequences_total=sequences)
        self.running: dict[SequenceId, tuple[Path, array[int], int]] = {}
        self.paths: list[Path] = []
        self.computed = 0

    def new_path(self) -> Path:
        """Mostly something that begins like an earlier path."""
        if self.paths and self.chance.random() < 0.7:
            old = self.chance.choice(self.paths)
            cut = old.prefix(self.chance.randint(1, len(old)))
            if active_cache(cut).inserting == 0 and self.chance.random() < 0.6:
                return cut.then([self.chance.randrange(4) for _ in range(self.chance.randint(1, 5))])
            return old
        return random_path(self.chance, steps=self.chance.randint(1, 9))

    def start(self) -> None:
        path = self.new_path()
        if active_cache(path).tokens > self.engine.capabilities.kv_cells // 2:
            return
        key = self.index.ops.key(path)
        try:
            sequence, _ = self.index.start(key, len(key) - 1)
        except EngineError:
            assert self.running, "an idle cache must always make way"
            return
        self.running[sequence] = (path, key, len(path))
        self.paths.append(path)

    def step(self, sequence: SequenceId) -> None:
        path, key, _ = self.running[sequence]
        try:
            work = self.index.advance(sequence, key, len(key) - 1)
        except (NoRoom, EngineError):
            self.finish(sequence)
            return
        if work is None:
            self.finish(sequence)
            return
        count = min(work.end - work.start, self.chance.randint(1, 4))
        if not self.index.make_room(count):
            assert self.index.cells_free + self.index.evictable_cells() < count
            self.finish(sequence)
            return
        tokens = key[work.start : work.start + count]
        self.engine.decode([BatchItem(work.sequence, tokens, work.position, logits=True)])
        self.computed += count
        self.index.extend(sequence, tokens)
        index = sum(1 for value in key[: work.start + count] if value >= 0) - 1
        assert self.engine.last_content(0) == contents(path.prefix(index + 1))[index]

    def finish(self, sequence: SequenceId) -> None:
        del self.running[sequence]
        self.index.finish(sequence)

    def check(self) -> None:
        self.index.check()
        assert self.index.cells_used == self.engine.used_cells()

    def act(self) -> None:
        roll = self.chance.random()
        if roll < 0.25 or not self.running:
            self.start()
        elif roll < 0.9:
            self.step(self.chance.choice(sorted(self.running)))
        elif roll < 0.95:
            self.finish(self.chance.choice(sorted(self.running)))
        elif roll < 0.96:
            self.index.compact()
        elif roll < 0.97 and self.paths:
            keys = [self.index.ops.key(p) for p in self.chance.sample(self.paths, min(3, len(self.paths)))]
            self.index.forget(keys[0], keys[1:])
        else:
            cells = self.chance.randint(1, 12)
            could = self.index.cells_free + self.index.evictable_cells() >= cells
            assert self.index.make_room(cells) == could


@pytest.mark.parametrize("seed", range(120))
def test_whatever_is_shared_moved_or_evicted_each_token_is_computed_as_the_twin_says(seed: int) -> None:
    chance = random.Random(seed * 7919)
    driver = Driver(seed, cells=chance.choice((24, 48, 96, 400)), sequences=chance.choice((3, 5, 9)))
    for _ in range(150):
        driver.act()
        driver.check()


def test_forgetting_a_path_leaves_nothing_of_it_but_what_others_share() -> None:
    engine = FakeEngine(kv_cells=64, max_sequences=4)
    index = RadixIndex(engine, cells_total=64, sequences_total=4)
    shared, own = array("i", [1, 2, 3, 4]), array("i", [1, 2, 3, 9, 9, 9])
    for tokens in (shared, own):
        sequence, at = index.start(tokens, len(tokens) - 1)
        engine.decode([BatchItem(sequence, tokens[at:], at, logits=True)])
        index.extend(sequence, tokens[at:])
        index.finish(sequence)
    index.forget(own, [shared])
    assert index.match(own).length == 3
    assert index.match(shared).length == 4
    assert index.cells_used == engine.used_cells() == 4
    index.check()


def test_forgetting_a_branch_leaves_what_it_took_over_from_its_parent() -> None:
    engine = FakeEngine(kv_cells=64, max_sequences=4)
    index = RadixIndex(engine, cells_total=64, sequences_total=4)
    parent, branch = array("i", [1, 2, 3, 4]), array("i", [1, 2, 3, 4, 5, 6])
    for tokens in (parent, branch):
        sequence, at = index.start(tokens, len(tokens) - 1)
        engine.decode([BatchItem(sequence, tokens[at:], at, logits=True)])
        index.extend(sequence, tokens[at:])
        index.finish(sequence)
    index.forget(branch, [parent])
    assert index.match(branch).length == 4
    assert index.cells_used == engine.used_cells() == 4
    index.check()
