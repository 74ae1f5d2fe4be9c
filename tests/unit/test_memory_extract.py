"""Extractive compaction: what stays, what goes, and what the budget means."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from akashic_daemon.memory.clauses import clauses, shortened
from akashic_daemon.memory.extract import Extract, Spoken, Weighed, Worths, extract, labels, lines, weigh

_FACTS = [
    Spoken("Gina", "I lost my job at the bakery in Lyon, so I am learning to weld."),
    Spoken("Jon", "Wow, that's cool, Gina! Good to see you!"),
    Spoken("Gina", "My brother Marco restores violins in Cremona and sells them to orchestras."),
]


def _even(_term: str) -> float:
    return 1.0


def _compact(turns: list[Spoken], rho: float) -> Extract:
    weighed = weigh(turns, _even, Counter())
    worths = Worths(rho)
    worths.add(weighed, sum(turn.length_chars for turn in turns))
    return extract(turns, weighed, worths.cutoff())


def test_courtesies_go_and_facts_stay() -> None:
    kept = _compact(_FACTS, 0.9)
    assert kept.texts[1] == ""
    assert "Marco restores violins in Cremona" in kept.texts[2]
    assert kept.rho < 0.9


@pytest.mark.parametrize(
    "text",
    [
        "Never touch the migrations folder",
        "the failing file is src/store/rows.py",
        "set AKASHIC_HOME before that",
        "call open_store() instead",
        "it was on the 7 of May",
        "I am allergic to peanuts",
        "use `--dry-run` please",
    ],
)
def test_identifiers_paths_numbers_and_lasting_wishes_stay_word_for_word_at_any_budget(text: str) -> None:
    assert _compact([Spoken("user", text + ". Good to see you!")], 0.01).texts == (text + ".",)


@pytest.mark.parametrize(
    "text", ["I do not want that here", "You could not have been in Cremona", "I won't go with him"]
)
def test_leaving_words_out_keeps_negation_and_mood(text: str) -> None:
    (clause,) = clauses(0, text)
    left = shortened(clause).split()
    assert {"not", "won't", "could", "want"} & set(text.split()) <= set(left)


@pytest.mark.parametrize("text", ["Das war so an der Tür", "昨日はとても楽しかった", "J'étais très fatigué"])
def test_no_word_is_left_out_of_other_languages(text: str) -> None:
    assert [shortened(clause) for clause in clauses(0, text)] == [text]


def test_a_term_counts_less_each_time() -> None:
    first, again = weigh([Spoken("a", "violins from Cremona"), Spoken("a", "violins from Cremona")], _even, Counter())
    assert first.text == again.text
    assert again.worth < first.worth


def test_a_turn_pays_once_for_naming_its_speaker() -> None:
    """Whatever is kept of the turn, its cost is what it takes in the compacted text."""
    turns = [Spoken("a", "Violins come from Cremona. Cellos come from Venice."), Spoken("b", "Basses come from Milan.")]
    weighed = weigh(turns, _even, Counter())
    assert [clause.turn for clause in weighed] == [0, 0, 1]
    costs = [clause.cost_chars - len(clause.text) for clause in weighed]
    assert costs[0] == costs[2] > costs[1]
    assert sum(clause.cost_chars for clause in weighed) == extract(turns, weighed, 0.0).kept_chars


def test_a_question_counts_in_full_when_its_answer_is_short() -> None:
    asked = "Which instruments does your brother restore?"
    short = weigh([Spoken("a", asked), Spoken("b", "Old violins")], _even, Counter())
    long = weigh([Spoken("a", asked), Spoken("b", "Old violins from Cremona, cellos, double basses")], _even, Counter())
    assert short[0].worth > long[0].worth


def test_one_budget_lets_a_chunk_of_facts_keep_more_than_one_of_chatter() -> None:
    worths = Worths(0.5, fading=1.0)
    facts = [Weighed(0, "x" * 9, 10, 3.0) for _ in range(40)]
    chatter = [Weighed(0, "x" * 9, 10, 0.1) for _ in range(40)]
    worths.add(facts, 400)
    worths.add(chatter, 400)
    turn = [Spoken("a", "y" * 397)]
    cutoff = worths.cutoff()
    assert extract(turn, facts, cutoff).rho > 0.9
    assert extract(turn, chatter, cutoff).kept_chars == 0


def test_room_that_a_chunk_left_is_given_to_the_next() -> None:
    def cutoff(kept_chars: int) -> float:
        worths = Worths(0.5)
        for _ in range(2):
            worths.add([Weighed(0, "x" * 9, 10, 1.0 + n / 100) for n in range(100)], 1000)
            worths.note(kept_chars)
        worths.add([Weighed(0, "x" * 9, 10, 1.0 + n / 100) for n in range(100)], 1000)
        return worths.cutoff()

    assert cutoff(300) < cutoff(500) < cutoff(700)


def test_what_the_budget_remembers_does_not_grow_with_history() -> None:
    worths = Worths(0.5)
    for number in range(300):
        worths.add([Weighed(0, "x", 2, math.exp(math.sin(number * k))) for k in range(1, 30)], 100)
    assert len(worths.chars) < 200


def test_a_budget_that_fits_everything_cuts_nothing_off() -> None:
    kept = _compact(_FACTS, 1.0)
    assert "learning to weld" in kept.texts[0]


def test_speakers_are_named_once_and_then_by_their_first_letters() -> None:
    assert labels(["Melanie", "Melissa", "Jon"]) == {"Melanie": "Mela", "Melissa": "Meli", "Jon": "J"}
    assert labels(["user", "user2"]) == {"user": "user", "user2": "user2"}
    assert lines(_FACTS, Extract(("welds", "", "has a brother"), 9, 9)).splitlines() == [
        "G = Gina, J = Jon",
        "G: welds",
        "G: has a brother",
    ]


def test_nothing_of_nothing_is_all_of_it() -> None:
    assert _compact([], 0.5) == Extract((), 0, 0)
    assert Extract((), 0, 0).rho == 1.0
