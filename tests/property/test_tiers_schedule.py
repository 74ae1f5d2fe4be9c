"""Everything that moves blocks, in a random order: answers are the twin's, sums agree with counters, nothing is left over.

Hints are among it, right and wrong ones, early and late: they change no answer. `tests/bench/tiers_schedule.py` runs longer.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from paths_strategy import random_path
from random_schedule import run_schedule
from tiers_driver import Breakable, Daemon, Tiers, small_blocks


@pytest.mark.parametrize("seeds", [(2,), (10, 19), (30, 36)])
def test_whatever_moves_when_answers_are_the_twins_and_nothing_drifts_or_leaks(
    tmp_path: Path, seeds: tuple[int, ...]
) -> None:
    """With seed 2 a request moved cells away that another, which waited for them, then computed over."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        counts += run_schedule(seed, tmp_path / str(seed), 400 if seed == 2 else 200)
    assert counts["answered"] > 30, counts
    assert counts["from ssd"], counts
    assert counts["wrong hints"] > 1, counts
    assert counts["hint"] > counts["wrong hints"], counts


def test_a_block_that_only_waits_to_be_written_is_not_forgotten(tmp_path: Path) -> None:
    """Without a RAM tier its only copy is a buffer: forgotten, it stood on the disk, and nothing found it until a restart."""
    path = random_path(random.Random(1), steps=4, longest=20)
    with small_blocks():
        daemon = Daemon(Tiers(tmp_path, ram_bytes=0), Breakable(kv_cells=400, max_sequences=8))
        job, told = daemon.submit(path, max_tokens=20, session="s")
        exporter, mover = daemon.loop.tiering.exporter, daemon.mover
        assert exporter is not None
        while not told.is_over:
            daemon.step()
        exporter.export(1.0)
        while mover._store_next():  # taken over, not yet written
            pass
        assert mover.waiting_writes
        assert mover.catalogue is not None
        for block in mover.catalogue.blocks()[::-1]:
            mover.catalogue.drop_empty(block)  # as when a request that found it ends
        daemon.check_answer(job)
        daemon.check_at_rest()
        assert mover.ssd is not None
        on_disk = {s.key for s in mover.ssd.labels("fake") if s.size_bytes}
        assert on_disk
        assert {b.key for b in mover.catalogue.blocks() if b.on_ssd} == on_disk
        daemon.close()
