"""KV that leaves and comes back at random, beside computing, sharing and releasing: every cell keeps its content."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytest.importorskip("gguf")
pytest.importorskip("llama_cpp")

from akashic_daemon.engine.base import AS_COMPUTED, STORAGES, BatchItem, PackedRun
from akashic_daemon.engine.llama_cpp import LlamaCppEngine, LlamaCppOptions
from akashic_daemon.errors import EngineError
from akashic_daemon.types import SequenceId
from kv_content import by_position
from tiny_gguf import Shape, write_tiny_gguf

pytestmark = pytest.mark.model

CELLS, SEQUENCES, STEPS = 320, 5, 120
LAST = 400


@dataclass(slots=True)
class Walk:
    """One walk: `held` is what each sequence must hold, by position; `away` is what was exported."""

    engine: LlamaCppEngine
    dice: random.Random
    held: list[dict[int, bytes]] = field(default_factory=lambda: [{} for _ in range(SEQUENCES)])
    away: list[tuple[memoryview, int, int]] = field(default_factory=list)
    done: dict[str, int] = field(default_factory=dict)

    def go(self) -> None:
        steps = [self.compute, self.share, self.release, self.export, self.bring_back, self.bring_back]
        for _ in range(STEPS):
            step = self.dice.choice(steps)
            if step():
                self.done[step.__name__] = self.done.get(step.__name__, 0) + 1
        for number in range(SEQUENCES):
            for start, end in self.runs(number):
                self.look(number, start, end)

    def any_sequence(self) -> int:
        return self.dice.randrange(SEQUENCES)

    def runs(self, number: int) -> list[tuple[int, int]]:
        out: list[tuple[int, int]] = []
        for position in sorted(self.held[number]):
            if out and out[-1][1] == position:
                out[-1] = (out[-1][0], position + 1)
            else:
                out.append((position, position + 1))
        return out

    def some_run(self, number: int) -> tuple[int, int] | None:
        runs = self.runs(number)
        if not runs:
            return None
        start, end = self.dice.choice(runs)
        first = self.dice.randrange(start, end)
        return first, self.dice.randint(first + 1, min(end, first + 90))

    def packed(self, number: int, start: int, end: int, storage: str) -> memoryview:
        data = memoryview(bytearray(self.engine.export_bytes(end - start, storage)))
        return data[: self.engine.export_cells(SequenceId(number), start, end, data, storage)].toreadonly()

    def look(self, number: int, start: int, end: int) -> None:
        found = by_position(self.engine, self.packed(number, start, end, AS_COMPUTED))
        assert found == {position: self.held[number][position] for position in range(start, end)}

    def learn(self, number: int, start: int, end: int) -> None:
        self.held[number] |= by_position(self.engine, self.packed(number, start, end, AS_COMPUTED))

    def compute(self) -> bool:
        number, count = self.any_sequence(), self.dice.randint(1, 40)
        start = max(self.held[number], default=-1) + 1
        if start + count > LAST:
            return False
        tokens = [self.dice.randrange(20, 120) for _ in range(count)]
        try:
            self.engine.decode([BatchItem(SequenceId(number), tokens, start, logits=False)])
        except EngineError:
            return False
        self.learn(number, start, start + count)
        return True

    def share(self) -> bool:
        source, target = self.any_sequence(), self.any_sequence()
        run = self.some_run(source)
        if run is None or any(position in self.held[target] for position in range(*run)):
            return False
        self.engine.share(SequenceId(source), SequenceId(target), *run)
        self.held[target] |= {position: self.held[source][position] for position in range(*run)}
        return True

    def release(self) -> bool:
        number = self.any_sequence()
        run = self.some_run(number)
        if run is None:
            return False
        self.engine.release(SequenceId(number), *run)
        for position in range(*run):
            del self.held[number][position]
        return True

    def export(self) -> bool:
        number = self.any_sequence()
        run = self.some_run(number)
        if run is None:
            return False
        self.look(number, *run)
        self.away.append((self.packed(number, *run, self.dice.choice(STORAGES)), *run))
        return True

    def bring_back(self) -> bool:
        number = self.any_sequence()
        picked = self.dice.sample(self.away, min(len(self.away), self.dice.randint(1, 4)))
        taken = set(self.held[number])
        runs = []
        for data, start, end in picked:
            shift = self.dice.choice([0, 0, 0, self.dice.randint(-start, LAST - end)])
            wanted = set(range(start + shift, end + shift))
            if not wanted & taken:
                taken |= wanted
                runs.append((PackedRun(data, start + shift, end + shift), shift))
        if not runs:
            return False
        reason = self.refusal([run for run, _ in runs], number)
        if reason is not None:
            assert "loading" in reason, "only cells may lack"
            self.lost(number)
            return False
        for run, shift in runs:
            self.learn(number, run.start, run.end)
            if not shift and run.data[5] == STORAGES.index(AS_COMPUTED):
                content = by_position(self.engine, run.data)
                assert {p: self.held[number][p] for p in content} == content
        return True

    def refusal(self, runs: list[PackedRun], number: int) -> str | None:
        try:
            self.engine.import_runs(runs, SequenceId(number))
        except EngineError as error:
            return error.message
        return None

    def lost(self, number: int) -> None:
        """Nothing of a failed import may be there."""
        found = self.engine.position_range(SequenceId(number))
        held = self.held[number]
        assert found == ((min(held), max(held)) if held else None)


@pytest.fixture(
    params=[("f32", "off", "llama"), ("f16", "on", "llama"), ("q8_0", "on", "llama"), ("f16", "off", "gemma3")]
)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LlamaCppEngine]:
    kv_type, flash_attention, architecture = request.param
    shape = Shape(architecture=architecture, width=128, window=4 * LAST)
    made = LlamaCppEngine(
        LlamaCppOptions(
            name="tiny", path=write_tiny_gguf(tmp_path / "m.gguf", shape=shape), kv_type=kv_type, kv_tokens=CELLS,
            flash_attention=flash_attention, max_sequences=SEQUENCES, threads=1,
        )
    )  # fmt: skip
    yield made
    made.close()


@pytest.mark.parametrize("seed", range(6))
def test_every_cell_keeps_its_content(engine: LlamaCppEngine, seed: int) -> None:
    walk = Walk(engine, random.Random(seed))
    walk.go()
    assert set(walk.done) == {"compute", "share", "release", "export", "bring_back"}, "a step was never taken"
