"""Bytes to text: whole characters only, and nothing of a stop string."""

from __future__ import annotations

from itertools import pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import given

from akashic_daemon.schedule.text import TextAssembler


def push_all(assembler: TextAssembler, pieces: list[bytes]) -> list[str]:
    return [assembler.push(p) for p in pieces] + [assembler.finish()]


def test_a_character_in_two_tokens_is_given_out_once_it_is_whole() -> None:
    assembler = TextAssembler(())
    assert push_all(assembler, [b"\xf0\x9f", b"\x98\x80", b"!"]) == ["", "\U0001f600", "!", ""]


def test_an_unfinished_character_at_the_end_becomes_a_replacement_mark() -> None:
    assembler = TextAssembler(())
    assert push_all(assembler, [b"a\xe2\x82"]) == ["a", "\ufffd"]
    assert assembler.text == "a\ufffd"


def test_a_stop_string_over_three_tokens_is_never_shown() -> None:
    assembler = TextAssembler(("STOP",))
    assert push_all(assembler, [b"go S", b"TO", b"P more"]) == ["go ", "", "", ""]
    assert assembler.stop_string == "STOP"
    assert assembler.text == "go "


def test_what_only_began_like_a_stop_string_is_given_back() -> None:
    assembler = TextAssembler(("STOP",))
    assert push_all(assembler, [b"ST", b"AY ST"]) == ["", "STAY ", "ST"]
    assert assembler.stop_string is None


def test_the_earliest_of_several_stop_strings_ends_the_text() -> None:
    assembler = TextAssembler(("zz", "b"))
    assert assembler.push(b"abzz") == "a"
    assert assembler.stop_string == "b"


def test_nothing_comes_after_a_stop_string() -> None:
    assembler = TextAssembler(("b",))
    assembler.push(b"ab")
    assert assembler.push(b"more") == ""
    assert assembler.text == "a"


@pytest.mark.parametrize("stop", [(), ("",)])
def test_an_empty_stop_string_stops_nothing(stop: tuple[str, ...]) -> None:
    assembler = TextAssembler(stop)
    assert push_all(assembler, [b"abc"]) == ["abc", ""]


@given(
    text=st.text(alphabet="ab\u20ac", max_size=30),
    stop=st.lists(st.text(alphabet="ab\u20ac", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 60), max_size=8),
)
def test_cutting_the_bytes_anywhere_gives_the_text_before_the_first_stop_string(
    text: str, stop: list[str], cuts: list[int]
) -> None:
    data = text.encode()
    edges = [0, *sorted(min(c, len(data)) for c in cuts), len(data)]
    assembler = TextAssembler(stop)
    given_out = "".join(push_all(assembler, [data[a:b] for a, b in pairwise(edges)]))
    assert given_out == assembler.text
    assert text.startswith(given_out)
    assert not any(s in given_out for s in stop)
    if assembler.stop_string is None:
        assert given_out == text
    else:
        assert text.startswith(given_out + assembler.stop_string)
