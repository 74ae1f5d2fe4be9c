"""What a service still holds when no request is left."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from akashic_daemon.service import Service
from tiers_service import settled


def assert_nothing_is_left(service: Service) -> None:
    """Look at everything that a request takes on its way."""
    loop = service._loop
    index, queue, mover = loop.index, loop._admission.waiting, service.tiers.mover
    assert index is not None
    index.check()
    assert not loop.busy
    assert not loop._running
    assert not index.running
    assert index.scratches == 0
    assert not queue._flows
    assert not queue._returned
    assert mover.catalogue is not None
    assert mover.incoming is not None
    assert mover.outgoing is not None
    assert not any(block.pins for block in mover.catalogue.blocks())
    assert mover.incoming.free_count == mover.incoming.count
    assert mover.outgoing.free_count == mover.outgoing.count
    assert index.evictable_cells() + index.cells_free == index.cells_total


async def assert_all_is_given_back(service: Service, limit_s: float = 60.0) -> None:
    """Wait until what runs has ended and is written down, then look at everything. Fails when something never ends."""
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + limit_s
    while (left := _requests_of(service)) and loop.time() < ends_s:
        await asyncio.sleep(0.01)
    assert not left, f"after {limit_s:g} s there are still {left}"
    assert await service._host.wait_unused(limit_s), "the model is still in use"
    await settled(service)
    await service._host.on_engine_thread(lambda: assert_nothing_is_left(service))


def _requests_of(service: Service) -> list[str]:
    running = [f"request {activity.request} ({activity.state})" for activity in service._loop.activity()]
    return [*running, *_tasks_of_requests()]


def _tasks_of_requests() -> list[str]:
    """Return the tasks that the routes or the server run for a request, each as the calls that it waits in."""
    found = []
    for task in asyncio.all_tasks():
        calls = list(_waiting_in(task.get_coro()))
        if any("/akashic_daemon/api/" in place or "run_asgi" in place for place in calls):
            found.append(" > ".join(calls))
    return found


def _waiting_in(awaited: Any) -> Iterator[str]:
    """Walk from a task's coroutine down to what it waits for."""
    while awaited is not None:
        code = next((x for name in ("cr_code", "ag_code", "gi_code") if (x := getattr(awaited, name, None))), None)
        if code is not None:
            yield f"{code.co_filename}:{code.co_qualname}"
        awaited = next(
            (x for name in ("cr_await", "ag_await", "gi_yieldfrom") if (x := getattr(awaited, name, None))), None
        )
