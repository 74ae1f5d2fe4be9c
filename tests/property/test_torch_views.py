"""Views and pages against a naive twin: a dictionary position -> written value a sequence, and nothing else.

Each written slot gets a value of its own; what a sequence sees through its views must be the twin's dictionary, whatever
is shared, released, saved, loaded elsewhere, packed or written into slots that were let go.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

pytest.importorskip("torch")

from akashic_daemon.engine.torch_engine import kv as kv_module
from akashic_daemon.engine.torch_engine.pages import Packing, PageTable
from akashic_daemon.engine.torch_engine.views import cells_of, placed, views_of
from akashic_daemon.errors import EngineError

SEQUENCES = 5


class Ledger:
    """Stands in for the pool: one number a slot."""

    def __init__(self, cells: int, page_tokens: int) -> None:
        self.values = np.zeros(cells, np.int64)
        self.page_tokens = page_tokens
        self.moved = 0

    def move(self, packing: Packing) -> None:
        self.values[packing.target] = self.values[packing.source].copy()
        self.moved += len(packing.source)


class Twin:
    """Runs random calls on both sides."""

    def __init__(self, seed: int, page_tokens: int) -> None:
        self.chance = random.Random(seed)
        self.limit = page_tokens * 6
        pages = 6 + 1
        self.ledger = Ledger(pages * page_tokens, page_tokens)
        self.kv = kv_module.PagedKv(self.ledger, PageTable(pages, page_tokens), SEQUENCES)  # type: ignore[arg-type]
        self.seen: list[dict[int, int]] = [{} for _ in range(SEQUENCES)]
        self.saved: list[tuple[kv_module.PagedCells, list[int]]] = []
        self.next_value = 1

    def held(self) -> int:
        values = {v for seen in self.seen for v in seen.values()}
        return len(values | {v for _, kept in self.saved for v in kept})

    def write(self) -> None:
        sequences = self.chance.sample(range(SEQUENCES), self.chance.randint(1, 3))
        counts = [self.chance.randint(1, 6) for _ in sequences]
        if self.held() + sum(counts) > self.limit:
            return
        if self.chance.random() < 0.4:
            counts = [1] * len(sequences)
        starts = [max(self.seen[s], default=-1) + self.chance.choice((1, 1, 1, 7)) for s in sequences]
        growth = self.kv.grow(sequences, counts, starts)
        if self.chance.random() < 0.2:
            self.kv.undo(growth)
            return
        at = 0
        for sequence, count, start in zip(sequences, counts, starts, strict=True):
            for position in range(start, start + count):
                self.ledger.values[growth.cells[at]] = self.next_value
                self.seen[sequence][position] = self.next_value
                self.next_value += 1
                at += 1
        self.kv.commit(growth)
        assert at == len(growth.cells)

    def span(self, sequence: int) -> tuple[int, int]:
        top = max(self.seen[sequence], default=0) + 2
        start = self.chance.randint(0, top)
        return start, self.chance.randint(start, top)

    def share(self) -> None:
        source, target = self.chance.sample(range(SEQUENCES), 2)
        start, end = self.span(source)
        part = {p: v for p, v in self.seen[source].items() if start <= p < end}
        if any(self.seen[target].get(p, v) != v for p, v in part.items()):
            with pytest.raises(EngineError):
                self.kv.share(source, target, start, end)
            return
        self.kv.share(source, target, start, end)
        self.seen[target] |= part

    def release(self) -> None:
        sequence = self.chance.randrange(SEQUENCES)
        start, end = self.chance.choice([(0, -1), self.span(sequence), (self.span(sequence)[0], -1)])
        self.kv.release(sequence, start, end)
        self.seen[sequence] = {p: v for p, v in self.seen[sequence].items() if p < start or 0 <= end <= p}

    def save(self) -> None:
        sequence = self.chance.randrange(SEQUENCES)
        positions = sorted(p for p in self.seen[sequence] if self.chance.random() < 0.8)
        if positions and len(self.saved) < 3:
            cells = self.kv.save(sequence, [(p, p + 1) for p in positions])
            self.saved.append((cells, [self.seen[sequence][p] for p in positions]))

    def load(self) -> None:
        if not self.saved:
            return
        cells, values = self.saved[self.chance.randrange(len(self.saved))]
        sequence, ranges, at = self.chance.randrange(SEQUENCES), [], self.chance.randint(0, 9)
        left = len(values)
        while left:
            count = self.chance.randint(1, left)
            ranges.append((at, at + count))
            at += count + self.chance.randint(0, 3)
            left -= count
        positions = [p for start, end in ranges for p in range(start, end)]
        if any(p in self.seen[sequence] for p in positions):
            with pytest.raises(EngineError):
                self.kv.load(cells, sequence, ranges)
            return
        self.kv.load(cells, sequence, ranges)
        self.seen[sequence] |= dict(zip(positions, values, strict=True))

    def forget(self) -> None:
        if self.saved:
            self.saved.pop(self.chance.randrange(len(self.saved)))

    def check(self) -> None:
        self.kv.check()
        assert self.kv.cells_held() == self.held()
        for sequence, seen in enumerate(self.seen):
            cells, positions = cells_of(self.kv.views(sequence), self.ledger.page_tokens)
            assert positions.tolist() == sorted(seen)
            assert self.ledger.values[cells].tolist() == [seen[p] for p in sorted(seen)]
            assert self.kv.position_range(sequence) == ((min(seen), max(seen)) if seen else None)


@pytest.mark.parametrize("page_tokens", [2, 5, 16])
@pytest.mark.parametrize("seed", range(4))
def test_what_sequences_see_is_what_the_naive_twin_says(seed: int, page_tokens: int) -> None:
    twin = Twin(seed, page_tokens)
    calls = [twin.write] * 6 + [twin.share, twin.share, twin.release, twin.release, twin.save, twin.load, twin.forget]
    for _ in range(500):
        twin.chance.choice(calls)()
        twin.check()
    assert twin.ledger.moved, "no page was packed: the test shows nothing"


def test_a_full_pool_refuses_one_token_more_and_keeps_what_it_has() -> None:
    kv = kv_module.PagedKv(Ledger(32, 8), PageTable(4, 8), 2)  # type: ignore[arg-type]
    kv.commit(kv.grow([0], [32], [0]))
    with pytest.raises(EngineError, match="no room for 1 more"):
        kv.grow([1], [1], [0])
    kv.check()
    assert kv.position_range(0) == (0, 31)


def test_every_last_cell_can_be_had_however_badly_pages_are_used() -> None:
    """One live token in each of seven pages, then as many new ones as cells are left."""
    kv = kv_module.PagedKv(Ledger(64, 8), PageTable(8, 8), 8)  # type: ignore[arg-type]
    for sequence in range(7):
        kv.commit(kv.grow([sequence], [8], [0]))
        kv.release(sequence, 0, 7)
    kv.commit(kv.grow(list(range(7)), [8, 8, 8, 8, 8, 8, 9], [8] * 7))
    kv.check()
    assert kv.cells_held() == 64


def test_rows_placed_elsewhere_keep_their_cells_and_order() -> None:
    chance = np.random.default_rng(3)
    for _ in range(200):
        cells = chance.permutation(40)[: chance.integers(1, 40)].astype(np.int64)
        views = views_of(cells, np.arange(len(cells)), 8)
        cuts = np.sort(chance.integers(0, len(cells) + 1, 3))
        counts = np.diff([0, *cuts, len(cells)])
        starts = np.cumsum([5, *(counts[:-1] + chance.integers(0, 4, 3))])
        ranges = [(int(s), int(s + n)) for s, n in zip(starts, counts, strict=True)]
        found, positions = cells_of(placed(views, ranges), 8)
        assert found.tolist() == cells.tolist()
        assert positions.tolist() == [p for start, end in ranges for p in range(start, end)]


def test_two_branches_of_one_prefix_dont_write_into_the_same_slots() -> None:
    kv = kv_module.PagedKv(Ledger(32, 8), PageTable(4, 8), 2)  # type: ignore[arg-type]
    kv.commit(kv.grow([0], [3], [0]))
    kv.share(0, 1, 0, 3)
    for counts in ([2, 2], [1, 1]):
        growth = kv.grow([0, 1], counts, [3, 3])
        assert len(set(growth.cells.tolist())) == sum(counts)
        kv.undo(growth)
    page = int(kv.views(0)[0, 0])
    assert kv.grow([0, 1], [1, 1], [3, 3]).cells[0] == page * 8 + 3, "the first goes on in the shared page"
