"""Tests that are coroutines: each is run to its end in an event loop of its own."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

P = ParamSpec("P")


def awaited(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test; one that hangs fails after two minutes."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 120))

    return run
