"""Keys of a terminal, one by one, while something else is drawn; Ctrl-C stays an interrupt."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

_NAMES = {"\x1b[A": "up", "\x1b[B": "down", "\x1bOA": "up", "\x1bOB": "down", "\r": "enter", "\n": "enter", "\t": "tab"}
_ESCAPE = "\x1b"
_LOOK_S = 0.2


def parse(typed: str) -> Iterator[str]:
    """Give the keys in what a terminal sent at once; sequences that mean nothing here are left out."""
    while typed:
        name = next((sequence for sequence in _NAMES if typed.startswith(sequence)), None)
        if name is not None:
            yield _NAMES[name]
            typed = typed[len(name) :]
        elif typed.startswith((_ESCAPE + "[", _ESCAPE + "O")):
            end = next((i for i, c in enumerate(typed[2:], 2) if c.isalpha() or c == "~"), len(typed) - 1)
            typed = typed[end + 1 :]
        else:
            yield "escape" if typed[0] == _ESCAPE else typed[0]
            typed = typed[1:]


@contextmanager
def pressed(take: Callable[[str], None]) -> Iterator[None]:
    """Hand each key over, from a thread; nothing where stdin is no terminal. The terminal is as before afterwards."""
    try:
        import termios
        import tty
    except ImportError:  # no POSIX terminal: the board is shown without keys
        yield
        return
    if sys.stdin is None or not sys.stdin.isatty():
        yield
        return
    descriptor, ended = sys.stdin.fileno(), Event()
    before = termios.tcgetattr(descriptor)

    def listen() -> None:
        while not ended.is_set():
            if not select.select([descriptor], [], [], _LOOK_S)[0]:
                continue
            data = os.read(descriptor, 256)
            if not data:
                return
            for key in parse(data.decode("utf-8", "replace")):
                take(key)

    thread = Thread(target=listen, daemon=True)
    try:
        tty.setcbreak(descriptor)
        thread.start()
        yield
    finally:
        ended.set()
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
