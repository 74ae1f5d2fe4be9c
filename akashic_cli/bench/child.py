"""A measuring process of ours: started, listened to line by line, and never left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from akashic_daemon.errors import EngineError, from_wire

_END_TIMEOUT_S = 10.0

Told = Callable[[dict[str, Any]], None]
"""Takes what the process says meanwhile."""


def end_like_an_interrupt() -> None:
    """Let SIGTERM do what Ctrl-C does: what was measured is kept, and no measuring process or daemon stays behind."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def run_module(module: str, arguments: Sequence[str], told: Told, *, doing: str) -> dict[str, Any]:
    """Run `python -m MODULE` and return its result. Raises what it raised, EngineError when it just died.

    doing: what is being measured, for messages. Each line it prints is an object; `result` or `error` ends it.
    """
    command = [sys.executable, "-m", module, *arguments]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        return _listen(child, told, doing)
    finally:
        if child.poll() is None:
            child.terminate()
        try:
            child.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if child.stdout is not None:
            child.stdout.close()


def _listen(child: subprocess.Popen[str], told: Told, doing: str) -> dict[str, Any]:
    assert child.stdout is not None
    for line in child.stdout:
        news = json.loads(line)
        if "error" in news:
            raise from_wire(news["error"])
        if "result" in news:
            result: dict[str, Any] = news["result"]
            return result
        told(news)
    raise EngineError(
        f"{doing}: its process ended with code {child.wait()} and no result",
        hint="what it wrote on stderr says why; `akashic doctor` looks for the cause",
    )
