"""llama.cpp's process-wide state: its log, its backend, and what this build can't be trusted with."""

from __future__ import annotations

import ctypes
import logging
import threading
from collections import deque

import llama_cpp

logger = logging.getLogger("akashic.llama_cpp")

_GGML_LEVEL_WARN = 3
_GGML_LEVEL_ERROR = 4
_lock = threading.Lock()
_recent_errors: deque[str] = deque(maxlen=20)
_ready = False


def _on_log(level: int, text: bytes, _user_data: ctypes.c_void_p) -> None:
    line = text.decode("utf-8", "replace").strip()
    if not line:
        return
    if level == _GGML_LEVEL_ERROR:
        _recent_errors.append(line)
        logger.warning("%s", line)
    elif level == _GGML_LEVEL_WARN:
        logger.info("%s", line)
    else:
        logger.debug("%s", line)


_log_callback = llama_cpp.llama_log_callback(_on_log)


def prepare() -> None:
    """Start llama.cpp's backend and take over its log. Further calls do nothing."""
    global _ready  # noqa: PLW0603 - llama.cpp's own state is global too
    with _lock:
        if not _ready:
            llama_cpp.llama_log_set(_log_callback, ctypes.c_void_p(0))
            llama_cpp.llama_backend_init()
            _ready = True


def clear_errors() -> None:
    """Forget what llama.cpp complained of so far."""
    _recent_errors.clear()


def last_errors() -> str:
    """Return llama.cpp's recent complaints as one line, for an error message."""
    return "; ".join(_recent_errors) or "llama.cpp gave no reason"


def system_info() -> str:
    """Return the CPU features that this build uses."""
    return str(llama_cpp.llama_print_system_info().decode())


def uses_amx() -> bool:
    """Tell if this build would run AMX tile instructions.

    Under some hypervisors the CPU announces AMX and the kernel grants it, yet the first tile load dies with SIGILL.
    """
    return "AMX_INT8 = 1" in system_info()
