"""How few sequences an edited path needs to come back from the tiers."""

from __future__ import annotations

from array import array

import pytest

from akashic_daemon.program.path import Drop, Insert, Path, Repos
from tiers_driver import BLOCK, Breakable, Daemon, Tiers, small_blocks


@pytest.mark.parametrize("sequences", [3, 4, 6])
def test_a_replaced_and_repositioned_history_comes_back_whole_with_as_few_as_three_sequences(sequences: int) -> None:
    """Two hold what was computed at one position before and after the Repos, one runs; nothing is left for an insertion."""
    path = Path(array("i", [0, 1, 2, 3] * 6)).then([3, 1, 2, 0, 1, 2], [Drop(((8, 12),)), Repos()])
    path = path.then([2, 2, 1, 0], [Drop(((14, 18),)), Insert(10, 4)]).then([3, 0, 3, 1])
    with small_blocks():
        daemon = Daemon(Tiers(None, ssd_bytes=0), Breakable(kv_cells=400, max_sequences=sequences, end_every=1 << 40))
        first = daemon.ask(path, max_tokens=4)
        daemon.empty_engine()
        again = daemon.ask(path.then(first.generated[:-1]).then([1, 2, 3, 0]), max_tokens=2)
        assert again.from_tier["ram"] > len(path) // 2
        assert again.computed <= 4 + BLOCK
        daemon.close()
