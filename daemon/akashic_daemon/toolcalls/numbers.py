"""Integers between two limits, as a grammar."""

from __future__ import annotations

from akashic_daemon.toolcalls.gbnf import either, literal

_MOST_DIGITS = 15


def integers_between(lowest: int | None, highest: int | None) -> str | None:
    """Return what matches the integers lowest <= i <= highest as JSON writes them; None when a limit is too long."""
    if any(len(str(abs(limit))) > _MOST_DIGITS for limit in (lowest, highest) if limit is not None):
        return None
    parts: list[str] = []
    if lowest is None or lowest < 0:
        least = 1 if highest is None or highest >= 0 else -highest
        parts += [f'"-" {body}' for body in _naturals(least, None if lowest is None else -lowest)]
    if highest is None or highest >= 0:
        parts += _naturals(max(0, lowest or 0), highest)
    return either(parts)


def _naturals(lowest: int, highest: int | None) -> list[str]:
    """Return alternatives for the integers of a range above or at zero."""
    if highest is None:
        length = len(str(lowest))
        more = f"[1-9] [0-9]{{{length},{_MOST_DIGITS}}}"
        return [*_naturals(lowest, 10**length - 1), more]
    out: list[str] = []
    while lowest <= highest:
        top = min(highest, 10 ** len(str(lowest)) - 1)
        out += _same_length(str(lowest), str(top))
        lowest = top + 1
    return out


def _same_length(low: str, high: str) -> list[str]:
    """Return alternatives for the numbers low..high, which have equally many digits."""
    if low == high:
        return [literal(low)]
    if len(low) == 1:
        return [f"[{low}-{high}]"]
    if low[0] == high[0]:
        return [f"{literal(low[0])} {body}" for body in _same_length(low[1:], high[1:])]
    rest = len(low) - 1
    out: list[str] = []
    first, last = int(low[0]), int(high[0])
    if low[1:] != "0" * rest:
        out += [f"{literal(low[0])} {body}" for body in _same_length(low[1:], "9" * rest)]
        first += 1
    ends_full = high[1:] == "9" * rest
    if first <= last - (not ends_full):
        out.append(f"[{first}-{last - (not ends_full)}] [0-9]{{{rest}}}")
    if not ends_full:
        out += [f"{literal(high[0])} {body}" for body in _same_length("0" * rest, high[1:])]
    return out
