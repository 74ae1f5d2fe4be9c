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
from busy_daemon import Clients, cut_and_check, fail_and_check, small_extents, start
from disk_faults import FailingDisk
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


@pytest.mark.parametrize(("stays_broken", "first"), [(False, 1), (True, 40)])
def test_whichever_call_to_the_disk_fails_answers_are_right_and_the_store_opens_whole(
    tmp_path: FilePath, stays_broken: bool, first: int
) -> None:
    """Some of them; `tests/bench/tiers_faults.py` tries all. Calls to files and the index's statements are counted together."""
    kinds: Counter[str] = Counter()
    for fail_at in range(first, 2500, 331 if CUTS <= 50 else 43):
        folder = tmp_path / str(fail_at)
        disk = fail_and_check(folder, fail_at, stays_broken=stays_broken)
        assert disk.failed
        kinds += disk.kinds
        shutil.rmtree(folder)
    assert len(kinds) > 2, kinds


@pytest.mark.parametrize("fail_at", range(1, 5))
def test_a_tier_that_fails_while_it_opens_leaves_a_daemon_without_it(tmp_path: FilePath, fail_at: int) -> None:
    disk = FailingDisk(None)
    with small_blocks(), small_extents():
        whole = start(tmp_path / "store", disk)
        Clients(3).work(whole, 6)
        whole.close()
        disk.fail_at, disk.stays_broken = fail_at, True
        with disk.under_the_index():
            daemon = start(tmp_path / "store", disk)
        assert daemon.mover.problem is not None
        assert daemon.mover.ssd is None
        Clients(3).turn(daemon)
        daemon.check_at_rest()
        daemon.close()
        again = start(tmp_path / "store", CountingFiles())
        assert again.mover.ssd is not None
        assert again.mover.ssd.verify() == []
        again.close()


def test_blocks_that_no_tier_takes_are_not_remembered(tmp_path: FilePath) -> None:
    disk = FailingDisk(1, stays_broken=True)
    with small_blocks(), disk.under_the_index():
        daemon = start(tmp_path / "store", disk, ram_bytes=0)
        assert daemon.mover.ssd is None
        Clients(5, sessions=2).work(daemon, 4)
        daemon.check_at_rest()
        catalogue = daemon.mover.catalogue
        assert catalogue is not None
        assert daemon.mover.moves.lost_blocks["ram_full"] > 10
        assert len(catalogue) == 0
        daemon.close()
