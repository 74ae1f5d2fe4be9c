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
    """Walk from a task's coroutine down to what it waits for, by the names of the functions and of the request's path."""
    while awaited is not None:
        code, frame = _of(awaited, "code"), _of(awaited, "frame")
        if code is not None:
            yield f"{code.co_filename}:{code.co_qualname}"
        known = frame.f_locals if frame is not None else {}
        if code is not None and code.co_name == "run_asgi":
            yield str(known["self"].scope["path"])
        below = _of(awaited, "await")
        awaited = known.get("source", below) if code is not None and code.co_name == "pump" else below


def _of(awaited: Any, what: str) -> Any:
    """Return a coroutine's or an asynchronous generator's code, frame, or what it waits for."""
    found = (getattr(awaited, f"{kind}_{what}", None) for kind in ("cr", "ag"))
    return next((one for one in found if one is not None), None)
