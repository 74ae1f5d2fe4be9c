"""A busy daemon whose power is cut at any moment, and whose disk fails at any call: what it serves is the twin's.

Invariant 6. `TIERS_KILL_CUTS` images instead of CI's share; `tests/bench/tiers_kill.py` runs 300, and real kills.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections import Counter
from pathlib import Path as FilePath

import pytest

from block_stores import CountingFiles
from busy_daemon import Clients, cut_and_check, small_extents, start
from tiers_driver import small_blocks

CUTS = int(os.environ.get("TIERS_KILL_CUTS", "20"))


def test_after_a_power_cut_at_any_moment_it_opens_verifies_and_serves_only_what_is_right(tmp_path: FilePath) -> None:
    counts: Counter[str] = Counter()
    for seed in itertools.count():
        folder = tmp_path / str(seed)
        counts += cut_and_check(folder, seed, 40, every=8, most=min(10, CUTS - counts["images"]))
        if counts["images"] >= CUTS:
            break
    assert counts["from ssd"] > 5 * CUTS, counts
    assert counts["evicted"], counts
    assert {"at write", "at sync", "at commit"} <= set(counts), counts


@pytest.mark.parametrize("stays_broken", [False, True])
def test_whichever_call_to_the_disk_fails_answers_are_right_and_the_store_opens_whole(
    tmp_path: FilePath, stays_broken: bool
) -> None:
    calls = 0
    step = 1 if CUTS > 50 else 11
    for fail_at in itertools.count(2, step):
        folder = tmp_path / str(fail_at)
        files, clients = CountingFiles(stays_broken=stays_broken), Clients(7, sessions=3)
        with small_blocks(), small_extents():
            daemon = start(folder, files, ram_bytes=0 if fail_at % 2 else 120_000)
            files.fail_at = fail_at
            clients.work(daemon, 16)
            daemon.settle()
            failed, files.fail_at = files.failed, None
            daemon.check_at_rest()
            daemon.close()
            again = start(folder, CountingFiles())
            assert again.mover.problem is None
            assert again.mover.ssd is not None
            assert again.mover.ssd.verify() == []
            for path in clients.paths:
                again.ask(path.then([1, 2]), max_tokens=2, session="after")
            again.close()
        shutil.rmtree(folder)
        calls += 1
        if not failed or calls >= (10 if CUTS <= 50 else 400):
            break
    assert calls >= 10
