"""Random lives of sequences on several torch engines, which must say the same bit for bit."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from akashic_daemon.engine.base import BatchItem
from akashic_daemon.engine.torch_engine import TorchEngine
from akashic_daemon.types import SequenceId


def logits(engine: TorchEngine, *items: BatchItem) -> Any:
    """Compute the items; return the rows that they asked for."""
    engine.decode(items)
    return np.concatenate([engine.logits(n) for n, item in enumerate(items) if item.logits])


def random_step(chance: random.Random, engines: tuple[TorchEngine, ...], lives: dict[int, int]) -> None:
    """Do one thing to one of four sequences on each engine, and compare what they say; `lives` are their ends."""
    roll, sequence = chance.random(), chance.randrange(4)
    if sequence not in lives:
        others = sorted(lives)
        if others and chance.random() < 0.5:
            source, lives[sequence] = SequenceId(others[0]), lives[others[0]]
            for one in engines:
                one.share(source, SequenceId(sequence), 0, lives[sequence])
        else:
            lives[sequence] = 0
        roll = 0.0
    own, end = SequenceId(sequence), lives[sequence]
    if end > 200 or roll > 0.93:
        for one in engines:
            one.release(own)
        del lives[sequence]
    elif roll < 0.3:
        _same(engines, [_item(chance, sequence, lives, chance.randint(2, 60))])
    elif roll < 0.75:
        chosen = [s for s in sorted(lives) if chance.random() < 0.7] or [sequence]
        _same(engines, [_item(chance, s, lives, 1) for s in chosen])
    elif roll < 0.82 and end > 20:
        start = chance.randrange(end - 10)
        for one in engines:
            one.release(own, start, start + 7)
    else:
        _there_and_back(engines, own)


def _item(chance: random.Random, sequence: int, lives: dict[int, int], count: int) -> BatchItem:
    start = lives[sequence]
    lives[sequence] += count
    return BatchItem(SequenceId(sequence), [chance.randrange(256) for _ in range(count)], start, logits=True)


def _same(engines: tuple[TorchEngine, ...], items: list[BatchItem]) -> None:
    first, second = (logits(one, *items) for one in engines)
    assert np.array_equal(first, second)


def _there_and_back(engines: tuple[TorchEngine, ...], sequence: SequenceId) -> None:
    """Export the longest run from the end, let go of it, and import it again."""
    out = []
    for one in engines:
        held = one.position_range(sequence)
        if held is None:
            return
        last = one.kv.views(sequence)[-1]
        start, end = int(last[3] + last[1]), held[1] + 1
        room = bytearray(one.export_bytes(end - start, "as_computed"))
        one.export_cells(sequence, start, end, memoryview(room), "as_computed")
        one.release(sequence, start, end)
        one.import_cells(memoryview(room), sequence, start, end)
        out.append(bytes(room))
    assert out[0] == out[1]
