"""Sizes, durations and counts as people read them."""

from __future__ import annotations

import time

_SIZE_STEP = 1024.0


def size(size_bytes: float) -> str:
    """Return a size in binary units: `512 B`, `1.5 KiB`, `98.2 MiB`."""
    if abs(size_bytes) < _SIZE_STEP:
        return f"{size_bytes:.0f} B"
    value = float(size_bytes)
    unit = "B"
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):  # noqa: B007 - the last one reached is printed
        value /= _SIZE_STEP
        # Rounding must not print 1024.0 of a smaller unit.
        if abs(value) < _SIZE_STEP - 0.05:
            break
    return f"{value:.1f} {unit}"


def duration(seconds: float | None) -> str:
    """Return a duration in the unit that fits: `12 ms`, `3.42 s`, `2 min 05 s`, `3 h 12 min`, `4 d 2 h`."""
    if seconds is None:
        return "-"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.995:
        return f"{seconds:.2f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def count(number: int | None) -> str:
    """Return a number with thin grouping, `-` for none."""
    return "-" if number is None else f"{number:,}"


def rate(per_s: float) -> str:
    """Return a speed in tokens a second."""
    return f"{per_s:.0f} tok/s" if per_s >= 100 else f"{per_s:.1f} tok/s"


def ago(at_s: float, now_s: float | None = None) -> str:
    """Return how long ago a moment was; moments not after the epoch are unknown."""
    if at_s <= 0:
        return "-"
    now = time.time() if now_s is None else now_s
    seconds = max(0.0, now - at_s)
    return "now" if seconds < 1 else f"{duration(float(int(seconds))).replace('.00', '')} ago"
