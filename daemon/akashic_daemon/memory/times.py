"""Times that a question names, as spans on the calendar: "on 7 May 2023", "in May", "last week", "two months ago".

Relative words count from a reference, the newest time that is known; beside a date they are said of the date, which alone
counts. What isn't understood names no time. Days are UTC's; the words are English.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

DAY_S = 86_400.0
_SETTLING_S = 3 * DAY_S
"""What happened is told of at first, and mostly within so many days."""
_COMING_S = DAY_S


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """From its start to before its end, in seconds since 1970."""

    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        """How long it is."""
        return self.end_s - self.start_s

    @property
    def fades_before_s(self) -> float:
        """How long before the start nearness falls to 1/e."""
        return _COMING_S + self.length_s / 8

    @property
    def fades_after_s(self) -> float:
        """How long after the end nearness falls to 1/e: things are told of after they happened."""
        return _SETTLING_S + self.length_s / 4


_MONTHS = {name.lower(): number for number, name in enumerate(calendar.month_name) if name}
_MONTHS |= {name.lower(): number for number, name in enumerate(calendar.month_abbr) if name} | {"sept": 9}
_WEEKDAYS = {name.lower(): number for number, name in enumerate(calendar.day_name)}
_SEASONS = {"spring": 3, "summer": 6, "autumn": 9, "fall": 9, "winter": 12}
_NUMBER_WORDS = "zero one two three four five six seven eight nine ten eleven twelve"
_NUMBERS = {name: count for count, name in enumerate(_NUMBER_WORDS.split())} | {
    "a": 1,
    "an": 1,
    "couple of": 2,
    "a couple of": 2,
    "a few": 3,
    "several": 4,
}

_MONTH = "(?P<month>" + "|".join(sorted(_MONTHS, key=len, reverse=True)) + r")\.?"
_YEAR = r"(?P<year>(?:19|20)\d\d)"
_DAY = r"(?P<day>[0-3]?\d)(?:st|nd|rd|th)?"
_SEASON = f"(?P<season>{'|'.join(_SEASONS)})"
_BEFORE_NAMES = r"(?:in|of|since|during|by|until|before|after|last|this|early|late|mid|around|through|from)[ -]"

_DATES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"\b{_YEAR}-(?P<number>[01]\d)(?:-(?P<day>[0-3]\d))?\b",
        rf"\b{_DAY} (?:of )?{_MONTH},? {_YEAR}\b",
        rf"\b{_MONTH} {_DAY},? {_YEAR}\b",
        rf"\b{_MONTH},? (?:of )?{_YEAR}\b",
        rf"\b{_SEASON},? (?:of )?{_YEAR}\b",
        rf"\b{_DAY} (?:of )?{_MONTH}\b",
        rf"\b{_MONTH} {_DAY}\b(?! *(?:%|times|people))",
        # Alone, "may" and "march" are other words, and "summer" is no time of a year that is known.
        rf"\b{_BEFORE_NAMES}(?:the )?(?:(?:beginning|start|middle|end) of )?{_MONTH}(?![\w'’])",
        rf"\b(?:in|during|since|by|of) {_YEAR}\b",
    )
)
_AGO = re.compile(
    rf"\b(?P<count>\d{{1,3}}|{'|'.join(sorted(_NUMBERS, key=len, reverse=True))}) (?P<unit>day|week|month|year)s? ago\b",
    re.IGNORECASE,
)
_RELATIVE = re.compile(
    r"\b(?:(?P<named>today|tonight|yesterday|last night|(?:the )?day before yesterday)|"
    r"(?P<which>last|this|past|previous) (?P<unit>week|weekend|month|year)|"
    rf"(?P<of>last|this|on) (?P<weekday>{'|'.join(_WEEKDAYS)})|(?P<season_of>last|this) {_SEASON})\b",
    re.IGNORECASE,
)


def spans(question: str, reference_s: float) -> tuple[TimeSpan, ...]:
    """Return the times that a question names, at most one for each place in it.

    Dates without a year are the last ones that had begun at the reference.
    """
    try:
        now = datetime.fromtimestamp(reference_s, UTC)
    except (ValueError, OverflowError, OSError):
        return ()
    found = list(_dates(question, now)) or list(_relative(question, now))
    return tuple(dict.fromkeys(found))


def _dates(question: str, now: datetime) -> Iterator[TimeSpan]:
    taken: list[tuple[int, int]] = []
    for pattern in _DATES:
        for match in pattern.finditer(question):
            if any(begin < match.end() and match.start() < end for begin, end in taken):
                continue
            if (span := _made(partial(_date, match.groupdict(), now))) is not None:
                taken.append(match.span())
                yield span


def _date(said: dict[str, str | None], now: datetime) -> TimeSpan:
    if (season := said.get("season")) is not None:
        return _season(int(said["year"] or 0), season.lower())
    month = int(said.get("number") or _MONTHS.get((said.get("month") or "").lower(), 0))
    year, day = said.get("year"), said.get("day")
    if not month:
        return _between(datetime(int(year or 0), 1, 1, tzinfo=UTC), datetime(int(year or 0) + 1, 1, 1, tzinfo=UTC))
    at = datetime(int(year or now.year), month, int(day or 1), tzinfo=UTC)
    if year is None and at > now:
        at = at.replace(year=at.year - 1)
    return _day(at) if day else _between(at, _month_later(at, 1))


def _relative(question: str, now: datetime) -> Iterator[TimeSpan]:
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    for match in _AGO.finditer(question):
        count = match["count"].lower()
        number = int(count) if count.isdigit() else _NUMBERS[count]
        if (span := _made(partial(_ago, number, match["unit"].lower(), today))) is not None:
            yield span
    for match in _RELATIVE.finditer(question):
        said = {name: (value or "").lower() for name, value in match.groupdict().items()}
        if (span := _made(partial(_said, said, today))) is not None:
            yield span


def _said(said: dict[str, str], today: datetime) -> TimeSpan:
    if said["named"]:
        back = 2 if "before" in said["named"] else int(said["named"] in ("yesterday", "last night"))
        return _day(today - timedelta(back))
    if said["weekday"]:
        back = (today.weekday() - _WEEKDAYS[said["weekday"]]) % 7
        return _day(today - timedelta(back or (7 if said["of"] == "last" else 0)))
    is_this = "this" in (said["which"], said["season_of"])
    if said["season"]:
        span = _season(today.year, said["season"])
        is_over = span.end_s <= today.timestamp()
        return span if is_this or is_over else _season(today.year - 1, said["season"])
    monday = today - timedelta(today.weekday())
    if said["unit"] == "weekend":
        saturday = monday + timedelta(5 if is_this else -2)
        return _between(saturday, saturday + timedelta(2))
    if said["unit"] == "week":
        return _between(monday, monday + timedelta(7)) if is_this else _between(monday - timedelta(7), monday)
    first = today.replace(day=1) if said["unit"] == "month" else today.replace(month=1, day=1)
    months = 1 if said["unit"] == "month" else 12
    return _between(first, _month_later(first, months)) if is_this else _between(_month_later(first, -months), first)


def _ago(number: int, unit: str, today: datetime) -> TimeSpan:
    """Return the day so many days ago; for longer units so much around it as the unit leaves open."""
    if unit in ("day", "week"):
        at, open_days = today - timedelta(number * (7 if unit == "week" else 1)), 0 if unit == "day" else 3
    else:
        first = _month_later(today.replace(day=1), -number * (12 if unit == "year" else 1))
        at = first.replace(day=min(today.day, calendar.monthrange(first.year, first.month)[1]))
        open_days = 15 if unit == "month" else 180
    return _between(at - timedelta(open_days), at + timedelta(open_days + 1))


def _season(year: int, name: str) -> TimeSpan:
    first = datetime(year, _SEASONS[name], 1, tzinfo=UTC)
    return _between(first, _month_later(first, 3))


def _month_later(first: datetime, months: int) -> datetime:
    count = first.year * 12 + first.month - 1 + months
    return first.replace(year=count // 12, month=count % 12 + 1)


def _day(at: datetime) -> TimeSpan:
    return _between(at, at + timedelta(1))


def _between(start: datetime, end: datetime) -> TimeSpan:
    return TimeSpan(start.timestamp(), end.timestamp())


def _made(make: Callable[[], TimeSpan]) -> TimeSpan | None:
    """Return a span; None where the calendar has no such day."""
    try:
        return make()
    except (ValueError, OverflowError):
        return None
