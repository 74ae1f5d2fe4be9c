"""Names of requests: one for each HTTP request, which its answer's header, its events and the log all have.

What one HTTP request asks for more than once (several prompts) has the name with a number behind.
"""

from __future__ import annotations

import itertools
import os
from contextvars import ContextVar

from akashic_daemon.types import RequestId

_numbers = itertools.count(1)
_current: ContextVar[tuple[RequestId, itertools.count[int]] | None] = ContextVar("akashic_request", default=None)


def begin() -> RequestId:
    """Name the HTTP request that this task serves, and return the name."""
    name = _fresh()
    _current.set((name, itertools.count(1)))
    return name


def current() -> RequestId | None:
    """Return the name of the HTTP request that is served; None outside of one."""
    found = _current.get()
    return None if found is None else found[0]


def next_id() -> RequestId:
    """Return a name for a generation that nothing else has."""
    found = _current.get()
    if found is None:
        return _fresh()
    name, number = found[0], next(found[1])
    return name if number == 1 else RequestId(f"{name}.{number}")


def _fresh() -> RequestId:
    return RequestId(f"req-{os.getpid():x}-{next(_numbers)}")
