"""The priority of the thread that moves KV: decoding must win the cores."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

_NICENESS = 15


def lower_priority() -> None:
    """Let every other thread go first: on Linux niceness is a thread's own."""
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
