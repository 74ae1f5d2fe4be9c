"""Sizes and durations as people type them."""

from __future__ import annotations

import re
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
