"""Reconciliation's rules: what is a statement, and when one supersedes, contradicts or repeats another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from akashic_daemon.memory.statements import SHARED, Statement, Verdict, judge, statements
from akashic_daemon.store.memory.rows import Relation

_LOCOMO = Path(__file__).resolve().parents[2] / "../shared/data/locomo_dev.json"


def _only(text: str, speaker: str = "Ann") -> Statement:
    (found,) = statements(speaker, text)
    return found


def _judged(older: str, newer: str) -> Verdict | None:
    return judge(_only(newer), _only(older), 200.0, 100.0)


@pytest.mark.parametrize(
    ("text", "subject", "slot", "value"),
    [
        ("I live in New York.", "ann", "home", "New York"),
        ("Well, I moved to Bern last week, and I like it.", "ann", "home", "Bern"),
        ("I work for Acme now.", "ann", "employer", "Acme"),
        ("I now work as a nurse, which is hard", "ann", "job", "nurse"),
        ("My favourite dish is fondue.", "ann", "favourit dish", "fondue"),
        ("Our API port is 8080.", SHARED, "api port", "8080"),
        ("the build folder has been moved to out/new", SHARED, "build folder", "out/new"),
        ("We use pytest for tests.", SHARED, "test", "pytest"),
        ("LOG_LEVEL=debug", SHARED, "log level", "debug"),
        ("Please set LOG_LEVEL to debug", SHARED, "log level", "debug"),
    ],
)
def test_plain_sentences_are_statements(text: str, subject: str, slot: str, value: str) -> None:
    found = _only(text)
    assert (found.subject, found.slot, found.value) == (subject, slot, value)
    assert not found.is_negated


@pytest.mark.parametrize(
    "text",
    [
        "Do I live in Rome?",
        "I would live in Rome if I could.",
        "Maybe our port is 8080",
        "I used to live in Rome.",
        "She said hello to the crowd",
        "My favourite one to play is jazz",
        "the weather is fine",
        "",
    ],
)
def test_questions_wishes_and_the_rest_are_none(text: str) -> None:
    assert list(statements("Ann", text)) == []


def test_a_later_value_of_a_slot_that_changes_supersedes_the_earlier_one() -> None:
    verdict = _judged("I live in Lyon.", "I moved to Bern.")
    assert verdict is not None
    assert (verdict.relation, verdict.first_is_newer) == (Relation.SUPERSEDES, True)
    assert verdict.reason == "home: Bern after Lyon"


def test_what_happened_later_counts_not_what_was_read_later() -> None:
    verdict = judge(_only("I live in Lyon."), _only("I moved to Bern."), 100.0, 200.0)
    assert verdict is not None
    assert (verdict.relation, verdict.first_is_newer) == (Relation.SUPERSEDES, False)


def test_a_different_value_supersedes_only_when_the_words_say_that_it_changed() -> None:
    told = _judged("Our port is 8080.", "The port is now 9090.")
    untold = _judged("Our port is 8080.", "The port is 9090.")
    assert told is not None
    assert untold is not None
    assert (told.relation, untold.relation) == (Relation.SUPERSEDES, Relation.CONTRADICTS)
    assert "nothing says that it changed" in untold.reason


@pytest.mark.parametrize("times", [(None, 100.0), (100.0, None), (None, None), (100.0, 100.0)])
def test_without_two_times_nothing_is_superseded(times: tuple[float | None, float | None]) -> None:
    verdict = judge(_only("I moved to Bern."), _only("I live in Lyon."), *times)
    assert verdict is not None
    assert verdict.relation is Relation.CONTRADICTS


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("I live in Lyon.", "I work for Acme now."),
        ("Our port is 8080.", "Our debug port is now 9090."),
        ("I no longer live in Lyon.", "I live in Bern."),
        ("I no longer live in Lyon.", "I don't live in Bern."),
    ],
)
def test_another_slot_or_a_value_that_was_never_claimed_is_left_alone(older: str, newer: str) -> None:
    assert _judged(older, newer) is None


def test_another_speaker_is_another_subject() -> None:
    assert judge(_only("I moved to Bern.", "Bob"), _only("I live in Lyon."), 200.0, 100.0) is None


def test_what_is_no_longer_so_is_superseded() -> None:
    verdict = _judged("I live in Lyon.", "I no longer live in Lyon.")
    assert verdict is not None
    assert verdict.relation is Relation.SUPERSEDES


def test_the_same_said_again_is_a_link() -> None:
    verdict = _judged("We use `pytest` for the tests.".replace("`", ""), "We now use pytest for tests.")
    assert verdict is not None
    assert verdict.relation is Relation.LINK


@pytest.mark.skipif(not _LOCOMO.is_file(), reason="LoCoMo isn't here")
def test_nothing_is_superseded_in_conversations_in_which_nobody_took_anything_back() -> None:
    for conversation in json.loads(_LOCOMO.read_text()):
        sessions = [
            s for k, s in conversation["conversation"].items() if isinstance(s, list) and k.startswith("session_")
        ]
        found = [
            (statement, float(number))
            for number, turn in enumerate(turn for session in sessions for turn in session)
            for statement in statements(turn["speaker"], turn["text"])
        ]
        verdicts = [judge(a, b, at, earlier) for n, (a, at) in enumerate(found) for b, earlier in found[:n]]
        assert [v for v in verdicts if v and v.relation is Relation.SUPERSEDES] == []
