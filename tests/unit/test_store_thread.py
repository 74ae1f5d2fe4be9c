"""Work of the store thread that nobody waits for."""

from __future__ import annotations

import asyncio
import logging

import pytest

from akashic_daemon.store.thread import StoreThread


def test_a_bug_in_what_one_session_keeps_is_told_and_keeps_no_other_from_the_disk(
    caplog: pytest.LogCaptureFixture,
) -> None:
    written: list[str] = []

    def broken() -> bool:
        raise KeyError("no such column")

    def sound() -> bool:
        written.append("b")
        return False

    async def scenario() -> str | None:
        thread = StoreThread()
        thread.later("a", broken)
        thread.later("b", sound)
        await thread.settled()
        thread.close()
        return thread.problem

    with caplog.at_level(logging.ERROR, "akashic.store"):
        problem = asyncio.run(scenario())
    assert written == ["b"]
    assert "no such column" in (problem or "")
    assert "session a" in caplog.text
