"""Options that `bench run` and `bench agents` share: who is measured beside us, with which model, and where homes lie."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PeersOption = Annotated[
    list[str] | None,
    typer.Option("--peer", metavar="NAME=URL", help="A server measured beside; `llama.cpp`: its own, started here."),
]
PeerModelOption = Annotated[str, typer.Option("--peer-model", help="Model that requests to peers name.")]
PeerTimeoutOption = Annotated[
    float, typer.Option("--peer-timeout", metavar="S", min=0.1, help="Longest silence of a peer.")
]
MeasuredModelOption = Annotated[
    str | None, typer.Option("--model", "-m", metavar="FILE", help="A model's file; another server's by its name.")
]
WorkDirOption = Annotated[
    Path | None, typer.Option("--work-dir", metavar="DIR", help="On whose disk homes of measured daemons lie.")
]
WrittenOption = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="Write everything as JSON, also when cut short.")
]
PEER_TIMEOUT_S = 120.0
