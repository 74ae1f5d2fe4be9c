"""Runs random cache programs on llama.cpp through the index, and compares every logits row with the oracle.

Programs of several requests run interleaved in one small cache: they share prefixes, drop, move, replace, branch, are
evicted and recovered. Each logits row that llama.cpp computes is compared with the oracle's row for the same path.
"""

from __future__ import annotations

import random
from array import array
from pathlib import Path as FilePath
from typing import Any

import llama_cpp
import numpy as np

from akashic_daemon.cache.index import NoRoom, RadixIndex
from akashic_daemon.engine.base import BatchItem
from akashic_daemon.errors import EngineError
from akashic_daemon.program import oracle
from akashic_daemon.program.active import active_cache
from akashic_daemon.program.path import Path
from akashic_daemon.types import SequenceId
from llama_oracle import logits
from paths_strategy import random_path
from tiny_gguf import Shape

CLOSE = 1e-4
"""Relative to the largest logit: the issue's bound."""
SHAPES = {
    "one layer": Shape(layers=1),
    "two layers, yarn": Shape(layers=2, yarn_factor=4.0),
    "three layers, one kv head": Shape(layers=3, kv_heads=1),
    "three layers, yarn, no gqa": Shape(layers=3, kv_heads=4, yarn_factor=2.0),
}


class Programs:
    """Runs random programs to their ends and remembers the worst error."""

    def __init__(self, file: FilePath, seed: int) -> None:
        self.chance = random.Random(seed)
        self.file = file
        self.cells = self.chance.choice((64, 96, 160))
        self.engine = self.make_engine()
        assert self.engine.capabilities.repos, self.engine.capabilities.why_not
        self.index = RadixIndex(self.engine, cells_total=self.cells, sequences_total=8)
        self.running: dict[SequenceId, tuple[Path, array[int], Any]] = {}
        self.paths: list[Path] = []
        self.worst = 0.0
        self.done = self.recovered = self.moved = self.compacted = 0

    def make_engine(self) -> Any:
        """Load `self.file` with `self.cells` cells of exact KV."""
        from akashic_daemon.engine.llama_cpp import LlamaCppEngine, LlamaCppOptions

        return LlamaCppEngine(
            LlamaCppOptions(
                name="tiny", path=self.file, kv_type="f32", max_sequences=8, flash_attention="off",
                kv_tokens=self.cells, threads=1,
            )
        )  # fmt: skip

    def start(self) -> None:
        path = random_path(self.chance, steps=self.chance.randint(1, 7), vocabulary=200, longest=7)
        if self.paths and self.chance.random() < 0.5:
            old = self.chance.choice(self.paths[-6:])
            cut = old.prefix(self.chance.randint(1, len(old)))
            same = active_cache(cut).inserting or self.chance.random() < 0.4
            path = old if same else cut.then([self.chance.randrange(200) for _ in range(3)])
        if active_cache(path).tokens > self.cells // 2 or len(path) > 60:
            return
        key = self.index.ops.key(path)
        matched = self.index.match(key).length
        try:
            sequence, at = self.index.start(key, len(key) - 1)
        except EngineError:
            assert self.running
            return
        self.recovered += at < min(matched, len(key) - 1)
        self.running[sequence] = (path, key, logits(self.file, path))
        self.paths.append(path)

    def step(self) -> None:
        """One batch of a few running programs, in one decode."""
        plan = []
        for sequence in self.chance.sample(sorted(self.running), min(len(self.running), self.chance.randint(1, 3))):
            _, key, _ = self.running[sequence]
            moved = self.index.moved_tokens(sequence)
            try:
                work = self.index.advance(sequence, key, len(key) - 1)
            except (NoRoom, EngineError):
                self.finish(sequence)
                continue
            self.moved += self.index.moved_tokens(sequence) - moved
            if work is None:
                self.done += 1
                self.check_sees(sequence)
                self.finish(sequence)
                continue
            count = min(work.end - work.start, self.chance.randint(1, 6))
            plan.append((sequence, work, key[work.start : work.start + count]))
        if not plan or not self.index.make_room(sum(len(tokens) for _, _, tokens in plan)):
            for sequence, _, _ in plan:
                self.finish(sequence)
            return
        self.engine.decode([BatchItem(w.sequence, tokens, w.position, logits=True) for _, w, tokens in plan])
        for number, (sequence, work, tokens) in enumerate(plan):
            self.index.extend(sequence, tokens)
            _, key, expected = self.running[sequence]
            token = sum(value >= 0 for value in key[: work.start + len(tokens)]) - 1
            self.compare(number, expected[token])

    def last_logits(self, number: int, size: int) -> Any:
        """Return the last logits of item `number` of the last batch."""
        row = llama_cpp.llama_get_logits_ith(self.engine._context, self.engine._batch.rows[number])
        return np.ctypeslib.as_array(row, (size,))

    def compare(self, number: int, expected: Any) -> None:
        found = self.last_logits(number, len(expected))
        self.worst = max(self.worst, float(np.abs(found - expected).max() / np.abs(expected).max()))

    def check_sees(self, sequence: SequenceId) -> None:
        """At the program's end, the sequence's positions are those of the naive twin."""
        positions = oracle.run(self.running[sequence][0]).positions.values()
        assert self.engine.position_range(sequence) == (min(positions), max(positions))
        assert self.index._holdings.count(sequence) == len(positions)

    def finish(self, sequence: SequenceId) -> None:
        del self.running[sequence]
        self.index.finish(sequence)

    def act(self) -> None:
        roll = self.chance.random()
        if roll < 0.35 or not self.running:
            self.start()
        elif roll < 0.88:
            self.step()
        elif roll < 0.95:
            self.compacted += self.index.compact() > 0
        else:
            self.index.make_room(self.chance.randint(1, self.cells // 2))
        self.index.check()
