"""Peers of a measurement: servers that are there already, and llama.cpp's own, which is started for it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from akashic_cli.bench.llama_server import PEER, LlamaServer
from akashic_cli.bench.planning import embedded_path
from akashic_cli.bench.request import Target
from akashic_daemon.errors import UsageError

OURS = "akashic"
STARTED = "started by us"
"""What stands in place of an URL where records tell which peers a run had."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One server. url: where it is, empty for one that is started; python: whose interpreter starts it, None for ours."""

    name: str
    url: str
    python: str | None = None


def parse_peers(given: Sequence[str]) -> list[Peer]:
    """Read `--peer` options: NAME=URL, `llama.cpp`, `llama.cpp=PYTHON`. Raises UsageError."""
    peers: list[Peer] = []
    for text in given:
        name, equals, rest = text.partition("=")
        is_url = rest.startswith(("http://", "https://"))
        if not name or not (is_url or (name == PEER and (bool(rest) or not equals))):
            raise UsageError(
                f"reading --peer {text!r}: it is not NAME=URL",
                hint=f"--peer llama=http://127.0.0.1:8080/v1, or --peer {PEER}: its server is started",
            )
        if name == OURS or name in {peer.name for peer in peers}:
            raise UsageError(f"reading --peer {text!r}: the name {name} is taken", hint="choose another name")
        if rest and not is_url and not os.access(rest, os.X_OK):
            raise UsageError(f"reading --peer {text!r}: {rest} can't be run", hint="name the Python that has xllamacpp")
        peers.append(Peer(name, rest if is_url else "", None if is_url else rest or None))
    return peers


def told(peers: Sequence[Peer]) -> dict[str, str]:
    """Return the peers for a record."""
    return {peer.name: peer.url or STARTED for peer in peers}


@contextmanager
def served(
    peers: Sequence[Peer], model: str | None, *, peer_model: str, timeout_s: float, max_tokens: int
) -> Iterator[dict[str, Target]]:
    """Start what is to be started and give where requests go, by name; ended at the end. Raises Unsupported, EngineError.

    model: the file that a started server loads, the embedded one if None.
    """
    with ExitStack() as started:
        targets = {}
        for peer in peers:
            url = peer.url
            if not url:
                threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
                url = started.enter_context(LlamaServer(_file(model), peer.python, threads=threads)).url
            targets[peer.name] = Target(url, None, peer_model, None, max_tokens, {}, timeout_s)
        yield targets


def _file(model: str | None) -> str:
    if model is not None and not os.path.isfile(model):
        raise UsageError(f"starting {PEER}'s server: {model} is no file", hint="name the model's file with -m")
    file = model or embedded_path()
    if not os.path.isfile(file):
        raise UsageError(f"starting {PEER}'s server: there is no embedded model here", hint="name a file with -m")
    return os.path.abspath(file)
