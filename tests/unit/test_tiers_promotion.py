"""What comes back from the tiers: short blocks together, each alone where that fails, and what a Repos had moved away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path as FilePath

import pytest

from akashic_daemon.engine.base import PackedRun
from akashic_daemon.errors import EngineError
from akashic_daemon.program.path import Drop, Insert, Path, PathBuilder, Repos
from akashic_daemon.types import SequenceId
from tiers_driver import BLOCK, Breakable, Daemon, Tiers, small_blocks


class Watched(Breakable):
    """Notes how many runs come with each import; refuses more than `most` at once, and the run at `never`."""

    def __init__(self, *, max_sequences: int = 6) -> None:
        super().__init__(kv_cells=600, max_sequences=max_sequences)
        self.imports: list[int] = []
        self.most = 1 << 30
        self.never = -1

    def import_runs(self, runs: Sequence[PackedRun], sequence: SequenceId) -> None:
        if len(runs) > self.most or self.never in {run.start for run in runs}:
            raise EngineError("importing was told to fail")
        self.imports.append(len(runs))
        super().import_runs(runs, sequence)


@pytest.fixture(autouse=True)
def blocks() -> Iterator[None]:
    with small_blocks():
        yield


def plain(count: int) -> Path:
    builder = PathBuilder()
    builder.append([i * 7 % 4 for i in range(count)])
    return builder.build()


def come_back(daemon: Daemon, path: Path, *, from_disk: bool = False) -> int:
    """Compute a path, evict it, and ask on; return the tokens that the second request computed."""
    first = daemon.ask(path, max_tokens=3, session="a")
    daemon.empty_engine()
    if from_disk:
        daemon.empty_ram()
    job = daemon.ask(path.then([*first.generated[:-1], 2, 3, 1]), max_tokens=2, session="a")
    daemon.check_at_rest()
    return job.computed


@pytest.mark.parametrize("from_disk", [False, True])
def test_short_blocks_are_imported_together(tmp_path: FilePath, from_disk: bool) -> None:
    engine = Watched()
    daemon = Daemon(Tiers(tmp_path), engine)
    assert come_back(daemon, plain(100), from_disk=from_disk) <= 3 + BLOCK
    assert sum(engine.imports) >= 100 // BLOCK
    if from_disk:  # those from RAM share a buffer that holds one whole block
        assert max(engine.imports) > 1
    daemon.close()


def test_short_blocks_from_ram_share_a_buffer(tmp_path: FilePath) -> None:
    engine = Watched()
    daemon = Daemon(Tiers(tmp_path), engine)
    path = plain(2)
    for number in range(12):  # an operation after every other token: blocks of two
        path = path.then([number % 4, (number + 1) % 4], [Drop(((0, 1),))])
    assert come_back(daemon, path) <= 3 + BLOCK
    assert max(engine.imports) > 1
    daemon.close()


def test_where_blocks_do_not_go_together_each_is_imported_alone_and_one_that_fails_is_computed(
    tmp_path: FilePath,
) -> None:
    engine = Watched()
    daemon = Daemon(Tiers(tmp_path), engine)
    engine.most, engine.never = 1, 44
    assert come_back(daemon, plain(100), from_disk=True) <= 3 + 2 * BLOCK
    assert set(engine.imports) == {1}
    assert daemon.mover.moves.lost_blocks["import_failed"] == 1
    daemon.close()


@pytest.mark.parametrize("sequences", [4, 6])
def test_what_a_repos_moves_is_copied_out_first_and_comes_back(tmp_path: FilePath, sequences: int) -> None:
    builder = PathBuilder()
    builder.append([i % 4 for i in range(116)])
    builder.apply(Drop(((40, 56),)))
    builder.apply(Repos(40, 20))
    builder.apply(Insert(40, 20))
    builder.append([3, 2, 1, 0, 1] * 5)
    daemon = Daemon(Tiers(tmp_path), Watched(max_sequences=sequences))
    assert come_back(daemon, builder.build()) <= 3 + BLOCK
    assert "evicted_before_copy" not in daemon.mover.moves.lost_blocks
    daemon.close()
