"""Ending a computation of llama.cpp in the middle, from another thread.

llama.cpp asks between the nodes of its graph, on the CPU backend, whether to go on: thousands of times a step. A Python
function would have to wait for the interpreter each time, so it asks libc's `strlen` about a text of ours: it is 0 while the
text is empty. Graphs on other backends run to their end.
"""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp

_ABORTED = 2
"""What `llama_decode` returns then."""


class Interrupt:
    """The text that one context asks about."""

    def __init__(self, context: Any) -> None:
        self._text = ctypes.create_string_buffer(2)
        asked = ctypes.cast(ctypes.CDLL(None).strlen, llama_cpp.ggml_abort_callback)
        self._asked = asked
        """Kept: llama.cpp holds its address."""
        llama_cpp.llama_set_abort_callback(context, asked, ctypes.cast(self._text, ctypes.c_void_p))

    def set(self) -> None:
        """Let what is computed, or else the next that is begun, end. Any thread."""
        self._text[0] = b"x"

    def clear_if(self, code: int) -> None:
        """Forget an interruption that has worked."""
        if code == _ABORTED:
            self._text[0] = b"\0"
