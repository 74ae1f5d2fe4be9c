"""Wire models of following logs into memory.

    POST   /memory/watch                  WatchRequest -> NDJSON of WatchEvent, until the client leaves or all is read

Below `/akashic/v1`. Paths are absolute, of the machine that the daemon runs on.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints

from akashic_daemon.protocol.wire import Wire
from akashic_daemon.types import NAMESPACE_PATTERN

Path = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
INCLUDE = ("*.jsonl",)
QUIET_S = 30.0


class WatchRequest(Wire):
    """What to follow. include: patterns of file names in folders. namespace: where it is remembered.

    once: end when all is read that there is. quiet_s: after so long without a line, a message that could still go on counts
    as whole.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, regex_engine="python-re")

    paths: list[Path] = Field(min_length=1, max_length=64)
    include: list[Path] = Field(default=list(INCLUDE), min_length=1, max_length=64)
    namespace: Annotated[str, StringConstraints(pattern=rf"^{NAMESPACE_PATTERN}\Z")] | None = None
    once: bool = False
    quiet_s: float = Field(QUIET_S, ge=0, le=86400)


class WatchEvent(Wire):
    """What happened: watching began, a file was read on, something couldn't be used, all is read that there is.

    new, known: turns. behind_bytes: what the file still holds. files: how many there are to read, when watching begins.
    reason: what couldn't be used, and why; when watching begins, why changes are found late.
    """

    kind: Literal["watching", "read", "problem", "caught_up", "error"]
    path: str = ""
    line: int | None = None
    reason: str = ""
    files: int = 0
    new: int = 0
    known: int = 0
    read_bytes: int = 0
    behind_bytes: int = 0
    error: dict[str, Any] | None = None
