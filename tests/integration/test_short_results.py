"""A client that empties old tool results, most of which are shorter than what it puts in their place."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path as FilePath

import pytest

from akashic_daemon.cache.describe import describe
from akashic_daemon.engine.fake import FakeEngine
from akashic_daemon.program.path import Repos, Shift
from akashic_daemon.protocol.context import CacheNode
from akashic_daemon.trajectory.message import Message, Role
from fake_service import ask, assistant, user
from watched_service import Outcome, Watch, driven, rendered, watched

GONE = "[removed]"
LONG = "a long result of many words "


def client(turns: int) -> Iterator[list[Message]]:
    """Yield the history of each turn: all but the newest four tool results are emptied."""
    told = [Message(Role.SYSTEM, "be exact"), user("go")]
    for turn in range(turns):
        text = LONG * 2 if turn % 5 == 1 else "ok"
        told += [assistant(f"call {turn}"), Message(Role.TOOL, text, tool_call_id="c")]
        old = [i for i, m in enumerate(told) if m.role is Role.TOOL][:-4]
        yield [replace(m, content=GONE) if i in old else m for i, m in enumerate(told)]


async def played(watch: Watch, turns: int) -> list[Outcome]:
    done = []
    for told in client(turns):
        done.append(await watch.ask(ask(*told, session="s", edit_reuse="drop", max_tokens=4)))
        assert done[-1].shown == rendered(told)
    return done


def kinds(nodes: list[CacheNode]) -> Iterator[CacheNode]:
    for node in nodes:
        yield node
        yield from kinds(node.children)


def test_turns_move_little_and_compute_little_and_the_tree_tells_of_it(home: FilePath) -> None:
    async def work() -> None:
        async with watched(home, lambda _n, _p: FakeEngine(kv_cells=8192, window_tokens=4096)) as watch:
            done = await played(watch, 16)
            assert all(turn.finished.reuse.computed_tokens < 150 for turn in done[1:])
            path = done[-1].job.route.path
            assert any(isinstance(placed.op, Shift) for placed in path.ops)
            assert not any(isinstance(placed.op, Repos) for placed in path.ops)
            moved = [turn.finished.reuse.reposed_tokens for turn in done if turn.finished.reuse.reposed_tokens]
            assert len(moved) > 5
            assert sum(moved) / len(moved) < done[-1].job.route.visible_tokens / 4, moved
            assert watch.service._loop.index is not None
            tree = describe(watch.service._loop.index, model=None, depth=1000)
            assert any(node.tokens for node in kinds(tree.roots) if node.kind == "shift")
            await watch.check_index()

    with driven():
        asyncio.run(work())


@pytest.mark.parametrize("cells", [700, 2000])
def test_answers_are_true_when_cells_are_short_and_positions_are_packed_near_the_windows_end(
    home: FilePath, cells: int
) -> None:
    async def work() -> None:
        async with watched(home, lambda _n, _p: FakeEngine(kv_cells=cells, window_tokens=700)) as watch:
            done = await played(watch, 14)
            kinds_of_ops = {type(placed.op) for turn in done for placed in turn.job.route.path.ops}
            assert {Repos, Shift} <= kinds_of_ops
            await watch.check_index()

    with driven():
        asyncio.run(work())
