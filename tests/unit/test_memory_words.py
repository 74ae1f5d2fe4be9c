"""Index terms: stems, scripts without spaces, symbols, and what no text may break."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from akashic_daemon.memory import traits
from akashic_daemon.memory.porter import stem
from akashic_daemon.memory.words import LONGEST_TERM, STOPWORDS, terms


@pytest.mark.parametrize(
    ("word", "expected"),
    # From the vocabulary that is published with the algorithm.
    [
        ("caresses", "caress"),
        ("ponies", "poni"),
        ("agreed", "agre"),
        ("plastered", "plaster"),
        ("motoring", "motor"),
        ("conflated", "conflat"),
        ("hopping", "hop"),
        ("falling", "fall"),
        ("filing", "file"),
        ("happy", "happi"),
        ("sky", "sky"),
        ("relational", "relat"),
        ("vietnamization", "vietnam"),
        ("hopefulness", "hope"),
        ("electrical", "electr"),
        ("adjustment", "adjust"),
        ("adoption", "adopt"),
        ("controlling", "control"),
        ("rate", "rate"),
        ("is", "is"),
    ],
)
def test_words_are_stemmed_as_porter_says(word: str, expected: str) -> None:
    assert stem(word) == expected


def test_forms_of_a_word_are_one_term_and_stopwords_none() -> None:
    assert terms("She was painting the paintings they painted") == ["paint", "paint", "paint"]
    assert terms("What is it that you'd do?") == []


def test_identifiers_and_paths_are_found_by_their_parts() -> None:
    assert terms("max_tokens in daemon/config.py:42") == ["max", "token", "daemon", "config", "py", "42"]


def test_accents_and_width_make_no_difference() -> None:
    assert terms("Café ＮＵＭＰＹ") == terms("cafe numpy")


def test_scripts_without_spaces_become_pairs_of_neighbours() -> None:
    assert terms("東京都 で") == ["東京", "京都", "て"] or terms("東京都 で") == ["東京", "京都", "で"]
    assert set(terms("京都")) < set(terms("私は京都に行った"))


def test_emoji_can_be_searched() -> None:
    assert terms("great 🎉!") == ["great", "🎉"]


@given(st.text())
def test_no_text_breaks_it_and_terms_are_terms_again(text: str) -> None:
    for term in terms(text):
        assert term
        assert term not in STOPWORDS or stem(term) != term or len(term) > 0
        assert len(term) <= 4 * LONGEST_TERM


def test_a_question_and_words_of_time_are_noticed() -> None:
    assert traits.of("How was it? [shares a photo]") == traits.QUESTION
    assert traits.of("We met last Friday.") == traits.DATED
    assert traits.of("去过吗？") == traits.QUESTION
    assert traits.asks_when("Since which year has she known him?")
    assert not traits.asks_when("What does she know?")
