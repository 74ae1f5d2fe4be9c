"""A person at a terminal: runs a command on a pty, types, and waits for what must appear."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

DEADLINE_S = 60.0
# A session of its own, with the terminal as its controlling one: only then do Ctrl-C and resizing send signals.
# Tests that run in the background of a script ignore Ctrl-C, and would hand that on.
_COMMAND = """
import fcntl, signal, sys, termios
signal.signal(signal.SIGINT, signal.default_int_handler)
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from akashic_cli.__main__ import main
sys.exit(main())
"""
_CURSOR_ASKED = b"\x1b[6n"
_READING = b"\x1b[?2004h"  # the line editor asks for bracketed paste when it begins
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[=>]|\r")


class Terminal:
    """The terminal and the command in it. Every wait has a deadline, and fails with what was on the screen."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self._master = master
        self.raw = b""
        self._seen = 0
        self._raw_seen = 0

    @property
    def text(self) -> str:
        """All that was shown so far, without colours and cursor movements."""
        return _ESCAPES.sub("", self.raw.decode("utf-8", "replace"))

    def expect(self, text: str) -> None:
        """Wait until `text` is shown after what the last `expect` found."""
        deadline_s = time.monotonic() + DEADLINE_S
        while (at := self.text.find(text, self._seen)) < 0:
            assert time.monotonic() < deadline_s, f"never shown: {text!r}; shown: {self.text[self._seen :]!r}"
            assert self._pump(), f"ended before it showed {text!r}; shown: {self.text[self._seen :]!r}"
        self._seen = at + len(text)

    def expect_raw(self, data: bytes) -> None:
        """Wait until these bytes are written, escapes and all, after what the last `expect_raw` found."""
        deadline_s = time.monotonic() + DEADLINE_S
        while (at := self.raw.find(data, self._raw_seen)) < 0:
            assert time.monotonic() < deadline_s, f"never written: {data!r}; written: {self.raw[self._raw_seen :]!r}"
            assert self._pump(), f"ended before it wrote {data!r}; written: {self.raw[self._raw_seen :]!r}"
        self._raw_seen = at + len(data)

    def expect_prompt(self) -> None:
        """Wait until a line is being read: keys that come earlier are the kernel's, not the line editor's."""
        self.expect_raw(_READING)

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._master, keys.encode())

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of the window; the kernel tells the command."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def exit_code(self) -> int:
        """Read to the end and return the exit code."""
        deadline_s = time.monotonic() + DEADLINE_S
        while self._pump():
            assert time.monotonic() < deadline_s, f"does not end; shown: {self.text[self._seen :]!r}"
        return self.process.wait(DEADLINE_S)

    def _pump(self) -> bool:
        """Read what is there, waiting a little for it; False when the command has closed the terminal."""
        if not select.select([self._master], [], [], 0.2)[0]:
            return self.process.poll() is None
        try:
            data = os.read(self._master, 1 << 16)
        except OSError:  # EIO: no process has the terminal any more
            return False
        self.raw += data
        for _ in range(data.count(_CURSOR_ASKED)):
            os.write(self._master, b"\x1b[1;1R")
        return bool(data)


@contextmanager
def terminal(*arguments: str, env: Mapping[str, str]) -> Iterator[Terminal]:
    """Run `akashic` with a terminal of 24 by 80 as its stdin, stdout and stderr; it is killed at the end."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {"PATH": os.environ["PATH"], "TERM": "xterm-256color", "LANG": "C.UTF-8", **env}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    process = subprocess.Popen(
        [sys.executable, "-c", _COMMAND, *arguments],
        stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        process.kill()
        process.wait(DEADLINE_S)
        os.close(master)
