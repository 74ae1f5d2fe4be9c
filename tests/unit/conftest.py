"""Fixtures of several unit tests of commands: a stand-in for the daemon, and no input."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli_daemon import FakeDaemon, listening


@pytest.fixture
def no_input(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A standard input with nothing in it."""
    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        yield


@pytest.fixture
def daemon(home: Path, no_input: None) -> Iterator[FakeDaemon]:
    """A stand-in for the daemon, on the socket of a home of its own."""
    with listening() as server:
        yield server
