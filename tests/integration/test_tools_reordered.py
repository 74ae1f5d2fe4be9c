"""The same tools in another order: told as the cause where the request's order is taken, as a note where the earlier is kept."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from akashic_daemon.engine.fake import FakeEngine
from akashic_daemon.schedule.events import Finished
from fake_service import NEVER, answer, ask, running_service, user

TOOLS = tuple({"type": "function", "function": {"name": name, "parameters": {}}} for name in ("alpha", "beta", "gamma"))
OTHERS = (*TOOLS[:2], {"type": "function", "function": {"name": "delta", "parameters": {}}})
FIRST, SECOND = "What eats the parrot?", "Where does the heron nest?"


def then(home: Path, text: str, **options: Any) -> Finished:
    """Ask once with TOOLS, then otherwise in the same session, and return what the second request was told."""

    async def run() -> Finished:
        async with running_service(
            home,
            lambda _name, _path: FakeEngine(kv_cells=65_536, window_tokens=8192, end_every=NEVER),
            flags={"cache.ram_bytes": 0, "cache.ssd_bytes": 0},
        ) as service:
            await answer(service, ask(user(FIRST), tools=TOOLS, session="s"))
            return await answer(service, ask(user(text), session="s", **options))

    return asyncio.run(run())


def cause(done: Finished) -> str | None:
    return None if done.reuse.miss is None else done.reuse.miss.cause


def is_noted(done: Finished) -> bool:
    return any("the earlier one was kept" in note for note in done.reuse.notes)


def test_another_order_is_the_cause_and_is_not_said_to_have_been_left_out(home: Path) -> None:
    done = then(home, FIRST, tools=TOOLS[::-1])
    assert cause(done) == "tools_reordered"
    assert not is_noted(done)


def test_an_order_that_is_kept_is_noted_and_is_no_cause_of_what_differs_later(home: Path) -> None:
    done = then(home, SECOND, tools=TOOLS[::-1], edit_reuse="drop")
    assert cause(done) == "text_differs"
    assert is_noted(done)


@pytest.mark.parametrize(("tools", "expected"), [(TOOLS, None), (OTHERS, "text_differs"), (TOOLS[1:], "text_differs")])
def test_the_same_order_or_other_tools_are_no_other_order(home: Path, tools: Any, expected: str | None) -> None:
    done = then(home, FIRST, tools=tools)
    assert cause(done) == expected
    assert not is_noted(done)
