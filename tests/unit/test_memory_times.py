"""Words of time: what a question names on the calendar, and how that weighs in a search."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from akashic_daemon.memory.memory import Memory, Said
from akashic_daemon.memory.scoring import FEATURES
from akashic_daemon.memory.times import spans
from akashic_daemon.store.memory.store import open_memory_store
from akashic_daemon.types import SystemClock
from hashed_words import HashedWords

NOW_S = datetime(2023, 8, 16, 15, tzinfo=UTC).timestamp()  # a Wednesday


def day_s(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def days(question: str, reference_s: float = NOW_S) -> list[tuple[str, str]]:
    return [
        (f"{datetime.fromtimestamp(s.start_s, UTC):%Y-%m-%d}", f"{datetime.fromtimestamp(s.end_s, UTC):%Y-%m-%d}")
        for s in spans(question, reference_s)
    ]


@pytest.mark.parametrize(
    ("question", "start", "end"),
    [
        ("What was it on 7 May 2023?", "2023-05-07", "2023-05-08"),
        ("What was it on May 7th, 2023?", "2023-05-07", "2023-05-08"),
        ("What broke on 2023-05-07?", "2023-05-07", "2023-05-08"),
        ("What broke on the 3rd of December?", "2022-12-03", "2022-12-04"),
        ("Where did we go in May?", "2023-05-01", "2023-06-01"),
        ("Where did we go in October?", "2022-10-01", "2022-11-01"),
        ("in the beginning of December 2022", "2022-12-01", "2023-01-01"),
        ("How often in 2022?", "2022-01-01", "2023-01-01"),
        ("Which lake in summer 2021?", "2021-06-01", "2021-09-01"),
        ("Which lake last summer?", "2022-06-01", "2022-09-01"),
        ("Where did we ski last winter?", "2022-12-01", "2023-03-01"),
        ("Who called yesterday?", "2023-08-15", "2023-08-16"),
        ("Who called the day before yesterday?", "2023-08-14", "2023-08-15"),
        ("Who called today?", "2023-08-16", "2023-08-17"),
        ("What did we say last week?", "2023-08-07", "2023-08-14"),
        ("What did we say this week?", "2023-08-14", "2023-08-21"),
        ("What did we say last weekend?", "2023-08-12", "2023-08-14"),
        ("What did we say last month?", "2023-07-01", "2023-08-01"),
        ("What did we say last year?", "2022-01-01", "2023-01-01"),
        ("Who came last Friday?", "2023-08-11", "2023-08-12"),
        ("Who came last Wednesday?", "2023-08-09", "2023-08-10"),
        ("Who came on Wednesday?", "2023-08-16", "2023-08-17"),
        ("Who came 3 days ago?", "2023-08-13", "2023-08-14"),
        ("Who came two weeks ago?", "2023-07-30", "2023-08-06"),
        ("Who came two months ago?", "2023-06-01", "2023-07-02"),
        ("Who came on 31 February 2023?", "2023-02-01", "2023-03-01"),
        ("Who came last weekend before April 10, 2023?", "2023-04-10", "2023-04-11"),
    ],
)
def test_words_of_time_name_days_on_the_calendar(question: str, start: str, end: str) -> None:
    assert days(question) == [(start, end)]


@pytest.mark.parametrize(
    "question",
    [
        "What may I march to?",
        "Who is May?",
        "in Mayville",
        "Is 2023 prime?",
        "the second week",
        "",
    ],
)
def test_other_words_name_none(question: str) -> None:
    assert days(question) == []


def test_two_dates_are_two_times() -> None:
    assert days("Between 1 May 2022 and June 2023?") == [("2022-05-01", "2022-05-02"), ("2023-06-01", "2023-07-01")]


WORDS = st.sampled_from(
    ["last", "this", "on", "in", "the", "ago", "day", "weeks", "may", "May", "31", "29", "february", "2023", "1900", "999",
     "of", "year", "years", "friday", "summer", "yesterday", "a couple of", ",", "-", "2024-02-30", "month", "months"]
)  # fmt: skip


@given(st.lists(WORDS, max_size=8).map(" ".join) | st.text(max_size=40), st.floats(allow_nan=True, allow_infinity=True))
def test_any_words_at_any_time_name_spans_that_end_after_their_start(question: str, reference_s: float) -> None:
    assert all(span.start_s < span.end_s for span in spans(question, reference_s))


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    store = open_memory_store(tmp_path / "memory.sqlite", SystemClock())
    made = Memory(store, HashedWords())
    trips = ("camping trip red", "camping trip green", "camping trip blue")
    for number, (text, date) in enumerate(zip(trips, ("2023-03-04", "2023-05-20", "2023-08-11"), strict=True)):
        made.add("user", f"s{number}", [Said("Ann", text, "1", day_s(date))])
    made.add("user", "s9", [Said("Ann", "camping trip grey", "1")])
    yield made
    store.close()


@pytest.mark.parametrize(
    ("when", "expected"),
    [("in May", "camping trip green"), ("last week", "camping trip blue"), ("in March 2023", "camping trip red")],
)  # fmt: skip
def test_what_was_said_then_gets_more_and_nothing_is_left_out(memory: Memory, when: str, expected: str) -> None:
    found = memory.search(["user"], f"camping trip {when}", asked_at_s=NOW_S)
    best, second, *_ = sorted(found, key=lambda span: -span.parts["time_named"])
    assert best.turn.text == expected
    assert best.parts["time_named"] > second.parts["time_named"] + 1
    assert len(found) == 4
    (undated,) = (span for span in found if span.turn.event_at_s is None)
    assert undated.parts["time_named"] == 0.0


def test_times_count_from_the_newest_turn_unless_the_question_has_its_own(memory: Memory) -> None:
    newest = memory.search(["user"], "camping yesterday")
    assert newest[0].turn.text == "camping trip blue"
    assert (
        memory.search(["user"], "camping yesterday", asked_at_s=day_s("2023-05-21"))[0].turn.text
        == "camping trip green"
    )


def test_a_time_in_which_all_was_said_weighs_nothing(memory: Memory) -> None:
    memory.forget([span.turn.id for span in memory.search(["user"], "camping") if span.turn.event_at_s is None])
    assert {span.parts["time_named"] for span in memory.search(["user"], "camping in 2023")} == {0.0}
    assert "time_named" in FEATURES
