"""Sizes, durations and moments as people type them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Annotated

import typer

_SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*([a-z]+)")


def parse_duration(text: str) -> float:
    """Return a duration in seconds. Raises ValueError that says how durations are written."""
    match = _DURATION.fullmatch(text.strip().lower())
    unit = _SECONDS.get(match[2]) if match else None
    if match is None or unit is None:
        raise ValueError(f"no duration: {text!r}; write a number with ms, s, min, h, d or w, e.g. 20s or 7d")
    return float(match[1]) * unit


def parse_moment(text: str) -> float:
    """Return a moment in seconds since the epoch; a day is its beginning here. Raises ValueError that says how to write one."""
    from datetime import datetime

    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        pass
    try:
        return time.time() - parse_duration(text)
    except ValueError:
        raise ValueError(
            f"no moment: {text!r}; write a day or a time, e.g. 2026-03-01 or 2026-03-01T14:30, or how long ago, e.g. 7d"
        ) from None


def parse_bytes(text: str) -> int:
    """Return a size in bytes, "auto" not being one. Raises ValueError that says how sizes are written."""
    from akashic_daemon.config import parse_size

    try:
        found = parse_size(text)
    except ValueError:
        found = "auto"
    if found == "auto":
        raise ValueError(
            f"no size: {text!r}; write a number of bytes, or one with KiB, MiB, GiB, kB, MB or GB, e.g. 2GiB"
        )
    return found


def _typed(parse: Callable[[str], float]) -> Callable[[str], float]:
    def convert(text: str) -> float:
        try:
            return parse(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error

    return convert


def _bytes(text: str) -> int:
    return int(_typed(parse_bytes)(text))


UnusedOption = Annotated[
    float | None,
    typer.Option(
        "--unused", metavar="DURATION", parser=_typed(parse_duration), help="What was not used for so long, e.g. 7d."
    ),
]
ToOption = Annotated[
    int | None,
    typer.Option(
        "--to", metavar="SIZE", parser=_bytes, help="The coldest, until the SSD tier takes no more, e.g. 2GiB."
    ),
]
ExpectOption = Annotated[
    float | None,
    typer.Option(
        "--expect",
        metavar="DURATION",
        parser=_typed(parse_duration),
        help="How long the tool takes, e.g. 20s; 30s if absent.",
    ),
]
AfterOption = Annotated[
    float | None,
    typer.Option(
        "--after",
        metavar="WHEN",
        parser=_typed(parse_moment),
        help="What was said then or later: a day, a time, or how long ago, e.g. 7d.",
    ),
]
BeforeOption = Annotated[
    float | None,
    typer.Option("--before", metavar="WHEN", parser=_typed(parse_moment), help="What was said before that."),
]
AtOption = Annotated[
    float | None,
    typer.Option("--at", metavar="WHEN", parser=_typed(parse_moment), help="When it was said; now if absent."),
]
