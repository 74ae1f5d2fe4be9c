"""A hinted session comes back into the engine while others run, where that costs nobody anything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path as FilePath

import pytest

from akashic_daemon.program.path import Path, PathBuilder
from fake_service import NEVER
from tiers_driver import Breakable, Daemon, Tiers, small_blocks

STEPS = 60


@pytest.fixture(autouse=True)
def blocks() -> Iterator[None]:
    with small_blocks():
        yield


def path_of(seed: int, count: int = 80) -> Path:
    builder = PathBuilder()
    builder.append([(i * 7 + seed) % 4 for i in range(count)])
    return builder.build()


class Scene:
    """Session `a` is parked, `b` streams on, and `a` is hinted."""

    def __init__(self, folder: FilePath, *, cells: int = 800, hole_s: float = 0.0, sequences: int = 8) -> None:
        engine = Breakable(kv_cells=cells, max_sequences=sequences, end_every=NEVER, hole_s=hole_s)
        self.daemon = daemon = Daemon(Tiers(folder), engine)
        daemon.ask(path_of(1), max_tokens=3, session="a")
        daemon.empty_engine()
        self.idle = path_of(3, 60)
        daemon.ask(self.idle, session="c")
        self.stream, self.told = daemon.submit(path_of(2), max_tokens=300, session="b")
        while not self.stream.generated:
            self.step()
        assert self.missing(path_of(1)) == 80
        assert daemon.loop.index is not None
        daemon.loop.tiering.hint("a", daemon.loop.index.ops.key(path_of(1)), 0.0)

    def step(self) -> None:
        self.daemon.step()
        self.daemon.mover.run_pending()

    def run(self) -> None:
        """Let the stream go on for a while."""
        for _ in range(STEPS):
            self.step()
        assert not self.told.is_over

    def missing(self, path: Path) -> int:
        """How many tokens of a path a request would compute or bring back now."""
        index = self.daemon.loop.index
        assert index is not None
        return index.missing_tokens(index.ops.key(path))

    def end(self) -> None:
        """End the stream and hold everything to the twin."""
        self.daemon.cancel(self.stream)
        self.step()
        self.daemon.check_answer(self.stream)
        self.daemon.check_at_rest()
        self.daemon.close()


def test_a_hinted_session_is_there_while_another_still_streams(tmp_path: FilePath) -> None:
    scene = Scene(tmp_path)
    scene.run()
    assert scene.missing(path_of(1)) == 1  # the last token of a prompt is always computed
    job, told = scene.daemon.submit(path_of(1).then([2, 3]), session="a")
    while not told.is_over:
        scene.step()
    assert job.computed == 2
    assert scene.daemon.loop.tiering.hints_met == 1
    scene.end()


def test_where_idle_cells_slow_others_it_waits_until_these_have_ended(tmp_path: FilePath) -> None:
    scene = Scene(tmp_path, hole_s=1e-9)
    scene.run()
    assert scene.missing(path_of(1)) == 80
    scene.daemon.cancel(scene.stream)
    scene.step()
    while scene.daemon.loop.tiering.idle_work() is not None:
        scene.daemon.mover.run_pending()
    assert scene.missing(path_of(1)) == 1
    scene.end()


@pytest.mark.parametrize(("cells", "sequences"), [(460, 8), (800, 4)])
def test_it_takes_nothing_that_others_have(tmp_path: FilePath, cells: int, sequences: int) -> None:
    scene = Scene(tmp_path, cells=cells, sequences=sequences)
    if cells < 800:
        scene.daemon.ask(path_of(0, 180), session="d")
    scene.run()
    assert scene.missing(path_of(1)) == 80
    assert scene.missing(scene.idle) == 1
    scene.end()


def test_it_makes_way_for_a_request_that_waits(tmp_path: FilePath) -> None:
    scene = Scene(tmp_path)
    for _ in range(STEPS):
        if scene.daemon.loop.tiering._warming is not None:
            break
        scene.step()
    assert scene.daemon.loop.tiering._warming is not None
    scene.daemon.submit(path_of(0), session="d")
    scene.step()
    assert scene.daemon.loop.tiering._warming is None
    scene.run()
    assert scene.missing(path_of(1)) == 1
    scene.end()
