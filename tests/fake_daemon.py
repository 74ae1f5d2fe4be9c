"""A daemon process on the fake engine, and clients of it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from akashic_daemon.paths import Paths

ENTRY = Path(__file__).resolve().parent / "serve_fake.py"
DEADLINE_S = 60.0


def free_port() -> int:
    """Return a port that nobody has at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def daemon(home: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """Run a daemon on the fake engine until the block ends; it listens when the block begins."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("AKASHIC_")}
    env |= {"AKASHIC_HOME": str(home), "PYTHONPATH": os.pathsep.join([str(ENTRY.parent), *sys.path])}
    process = subprocess.Popen([sys.executable, str(ENTRY), *flags], env=env, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        said = ""
        for line in process.stderr:
            said += line
            if "listens on" in line:
                break
        else:
            raise AssertionError(said)
        yield process
    finally:
        process.kill()
        process.communicate()


def on_socket(paths: Paths) -> httpx.Client:
    """Return a client on the Unix socket."""
    return httpx.Client(
        transport=httpx.HTTPTransport(uds=str(paths.socket)), base_url="http://localhost", timeout=DEADLINE_S
    )
