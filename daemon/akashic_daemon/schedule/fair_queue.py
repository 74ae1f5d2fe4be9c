"""Whose turn is next: weighted fair queueing over sessions, by start tags of virtual time.

A session that was served goes behind those that weren't, however much it asks for; its own requests keep their order.
Priorities are weights, so background work is slow beside others and never starves. Requests that ran already and had to
give way come before everything: somebody reads their streams.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from akashic_daemon.schedule.request import Request
from akashic_daemon.types import Priority

WEIGHTS: dict[Priority, float] = {"interactive": 8.0, "normal": 1.0, "background": 1 / 8}
"""Turns that a session of each priority gets while one of normal priority gets one."""


@dataclass(slots=True)
class _Flow:
    """A session's waiting requests, in order. start: the virtual time from which its next turn counts."""

    start: float
    waiting: deque[Request] = field(default_factory=deque)

    @property
    def weight(self) -> float:
        """Its most urgent request pulls those before it along."""
        return max(WEIGHTS[r.priority] for r in self.waiting)

    @property
    def turn(self) -> tuple[float, float]:
        """What it is sorted by."""
        return self.start + 1 / self.weight, self.waiting[0].created_s


class FairQueue:
    """The requests that wait. Each request without a session is one of its own."""

    def __init__(self) -> None:
        self._flows: dict[str, _Flow] = {}
        self._returned: deque[Request] = deque()
        self._now = 0.0
        """Virtual time: one unit is one turn for every session that waits."""
        self._served: dict[str, float] = {}
        """From when the next turn of a session counts that has nothing waiting but was served lately."""

    def __len__(self) -> int:
        return len(self._returned) + sum(len(flow.waiting) for flow in self._flows.values())

    def __iter__(self) -> Iterator[Request]:
        yield from self._returned
        for flow in self._flows.values():
            yield from flow.waiting

    def count_of(self, request: Request) -> int:
        """Return how many requests of its session wait."""
        flow = self._flows.get(_name(request))
        return len(flow.waiting) if flow is not None else 0

    def add(self, request: Request) -> None:
        """Let a request wait for its session's turn."""
        name = _name(request)
        flow = self._flows.get(name)
        if flow is None:
            flow = self._flows[name] = _Flow(max(self._now, self._served.pop(name, 0.0)))
        flow.waiting.append(request)

    def give_back(self, request: Request) -> None:
        """Let a request that had its turn go on before all others."""
        self._returned.appendleft(request)

    @property
    def head(self) -> Request | None:
        """Whose turn is next."""
        if self._returned:
            return self._returned[0]
        flow = min(self._flows.values(), key=lambda f: f.turn, default=None)
        return flow.waiting[0] if flow is not None else None

    def take(self) -> Request:
        """Remove the head and count its session's turn."""
        request = self.head
        assert request is not None
        if self._returned:
            return self._returned.popleft()
        name = _name(request)
        flow = self._flows[name]
        cost = 1 / flow.weight
        self._now = max(self._now, flow.start) + 1 / sum(f.weight for f in self._flows.values())
        flow.start += cost
        flow.waiting.popleft()
        if not flow.waiting:
            self._forget_old()
            self._leave(name, served=request.session is not None)
        return request

    def remove(self, request: Request) -> bool:
        """Let a request go without a turn; False when it doesn't wait here."""
        if request in self._returned:
            self._returned.remove(request)
            return True
        flow = self._flows.get(_name(request))
        if flow is None or request not in flow.waiting:
            return False
        flow.waiting.remove(request)
        if not flow.waiting:
            self._leave(_name(request), served=request.session is not None)
        return True

    def clear(self) -> None:
        """Forget everything."""
        self._flows.clear()
        self._returned.clear()
        self._served.clear()

    def _leave(self, name: str, *, served: bool) -> None:
        start = self._flows.pop(name).start
        if served and start > self._now:
            self._served[name] = start

    def _forget_old(self) -> None:
        """Drop what no longer makes a difference, so that many sessions cost no memory."""
        if len(self._served) > 2 * (len(self._flows) + 64):
            self._served = {name: start for name, start in self._served.items() if start > self._now}


def _name(request: Request) -> str:
    return f"session {request.session}" if request.session is not None else f"request {request.id}"
