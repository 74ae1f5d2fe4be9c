"""The border of the engine thread: whatever is done there, the thread goes on, and somebody is told.

Broad excepts stand here, for on this thread nothing else would tell anybody: requests would hang on a dead one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from akashic_daemon.errors import AkashicError, EngineError

logger = logging.getLogger("akashic.loop")


class BeginAnew(Protocol):
    """Empties the cache: an error of the engine's lets requests begin again, a bug ends them."""

    def __call__(self, error: AkashicError, doing: str, *, is_bug: bool = False) -> None:
        """Begin anew because `doing` failed by `error`."""


class Guard:
    """`failed`: why what is cached may be other than the index says, None while it is what it says."""

    def __init__(self, begin_anew: BeginAnew, failed: Callable[[], Exception | None]) -> None:
        self._begin_anew = begin_anew
        self._failed = failed

    def run(self, work: Callable[[], object]) -> None:
        """Do something; afterwards what is cached is what the index says, whatever was raised."""
        try:
            work()
        except Exception as error:
            if self._mend():
                return  # accounts that were cut off in the middle are the reason, and no bug
            if isinstance(error, AkashicError):
                self._begin_anew(error, "what the engine was asked for")
                return
            logger.exception("the engine thread met a bug")
            internal = EngineError(f"an internal error in the step loop: {error!r}", hint="see the log")
            self._begin_anew(internal, "a step", is_bug=True)
        else:
            self._mend()

    def _mend(self) -> bool:
        """Begin anew when the engine failed where nobody could go on from; tell whether it did."""
        failed = self._failed()
        if failed is not None:
            self._begin_anew(as_ours(failed), "sharing or releasing KV cells")
        return failed is not None

    @staticmethod
    def survive(work: Callable[[], None]) -> None:
        """Do something with an engine that goes: what it raises now is only logged."""
        try:
            work()
        except Exception:
            logger.exception("putting an engine away failed")


def as_ours(error: Exception) -> AkashicError:
    """Return what a client is told of an error that came out of the engine."""
    if isinstance(error, AkashicError):
        return error
    return EngineError(f"the engine failed: {error!r}", hint="see the daemon's log")
