"""Waits for pieces of an answer are limited by one timer, and tell a limit from a cancellation."""

from __future__ import annotations

import asyncio
from contextlib import closing
from unittest import mock

import pytest

from akashic_daemon.remote.waits import Waits

LONG_S, SHORT_S = 3600.0, 0.01


async def ready() -> bytes:
    return b"x"


async def passed_on() -> bytes:
    await asyncio.sleep(0)
    return b"x"


def never() -> asyncio.Future[bytes]:
    return asyncio.get_running_loop().create_future()


def test_a_wait_ends_at_its_limit_also_after_many_that_did_not_and_after_longer_ones() -> None:
    async def check() -> None:
        with closing(Waits()) as waits:
            assert await waits.limited(ready(), LONG_S) == b"x"
            for _ in range(100):
                assert await waits.limited(passed_on(), LONG_S) == b"x"
            for _ in range(2):
                with pytest.raises(TimeoutError):
                    await waits.limited(never(), SHORT_S)
            assert await waits.limited(passed_on(), LONG_S) == b"x"
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    asyncio.run(check())


def test_time_between_waits_does_not_count() -> None:
    async def check() -> None:
        with closing(Waits()) as waits:
            await waits.limited(ready(), SHORT_S)
            assert waits._timer is not None
            waits._timer.cancel()
            waits._look()  # as when the timer goes off, and finds nobody waiting
            assert await waits.limited(passed_on(), LONG_S) == b"x"
            with pytest.raises(TimeoutError):
                await waits.limited(never(), SHORT_S)

    asyncio.run(check())


def test_a_cancellation_from_elsewhere_stays_one() -> None:
    async def waiting(began: asyncio.Event) -> bytes:
        with closing(Waits()) as waits:
            began.set()
            return await waits.limited(never(), LONG_S)

    async def check() -> None:
        began = asyncio.Event()
        task = asyncio.create_task(waiting(began))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(check())


def test_many_waits_set_one_timer_and_closing_lets_go_of_it() -> None:
    async def check() -> None:
        loop = asyncio.get_running_loop()
        with mock.patch.object(loop, "call_at", wraps=loop.call_at) as call_at:
            with closing(Waits()) as waits:
                for _ in range(50):
                    await waits.limited(passed_on(), LONG_S)
                timer = waits._timer
            assert call_at.call_count == 1
        assert timer is not None
        assert timer.cancelled()

    asyncio.run(check())
