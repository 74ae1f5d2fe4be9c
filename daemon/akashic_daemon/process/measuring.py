"""How a process that measures speaks to whoever started it: a JSON object a line on stdout, `result` or `error` the last.

`akashic_cli.bench.child` is who starts and reads it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from akashic_daemon.errors import AkashicError

INTERRUPTED = 130


def tell(news: dict[str, Any]) -> None:
    """Print one line for whoever started this process."""
    print(json.dumps(news, ensure_ascii=False), flush=True)


def tell_result(measure: Callable[[], dict[str, Any]]) -> int:
    """Measure, tell what it came to or why it couldn't, and return the exit code."""
    try:
        tell({"result": measure()})
    except AkashicError as error:
        tell({"error": error.to_wire()})
        return error.exit_code
    except KeyboardInterrupt:  # who started this process has been told too, and says so
        return INTERRUPTED
    return 0
