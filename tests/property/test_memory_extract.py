"""Extractive compaction of any text: it leaves out, and never makes up."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from akashic_daemon.memory.extract import Spoken, Worths, extract, weigh

_SAMPLES = (
    "Wow I'm not going to the café, and my brother Marco paid 40 euros! never src/a.py? 昨日は。 thanks so-so 😀 «ça»"
)
_WORDS = st.sampled_from([*_SAMPLES.split(), "\n"])
_TEXT = st.one_of(st.lists(_WORDS, max_size=40).map(" ".join), st.text(max_size=200))
_TURNS = st.lists(st.builds(Spoken, st.sampled_from(["Ann", "Bob", ""]), _TEXT), max_size=8)


def _is_left_of(kept: str, raw: str) -> bool:
    rest = iter("".join(raw.split()))
    return all(character in rest for character in "".join(kept.split()))


@given(_TURNS, st.floats(0, 1))
def test_what_is_kept_is_the_text_with_pieces_left_out_in_order(turns: list[Spoken], rho: float) -> None:
    weighed = weigh(turns, lambda _term: 1.0, Counter())
    worths = Worths(rho)
    worths.add(weighed, sum(turn.length_chars for turn in turns))
    kept = extract(turns, weighed, worths.cutoff())
    assert len(kept.texts) == len(turns)
    for turn, text in zip(turns, kept.texts, strict=True):
        assert _is_left_of(text, turn.text)
        assert {c for c in turn.text if c.isdecimal()} <= set(text)


@given(_TURNS)
def test_the_same_turns_are_compacted_to_the_same_text(turns: list[Spoken]) -> None:
    assert weigh(turns, len, Counter()) == weigh(turns, len, Counter())
