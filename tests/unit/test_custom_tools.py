"""Custom tools: shown as functions of one text, and their input read from a call's arguments however these are cut."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from akashic_daemon.errors import BadRequest
from akashic_daemon.toolcalls.custom import InputReader, arguments_of, as_function
from akashic_daemon.toolcalls.definitions import parameters_of

PATCH = '*** Begin Patch\n*** Update File: a "b".py\n-\told \\ 1\n+\tnew é 😀\n*** End Patch'
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
CUTS = st.lists(st.integers(0, 400), max_size=8)


def input_of(arguments: str) -> str:
    """Return the input that whole arguments hold."""
    reader = InputReader()
    return reader.push(arguments) + reader.finish()


def in_pieces(text: str, cuts: list[int]) -> list[str]:
    places = [0, *sorted({min(cut, len(text)) for cut in cuts}), len(text)]
    return [text[a:b] for a, b in pairwise(places)]


@given(TEXTS, CUTS, st.booleans(), st.sampled_from(["", " ", "\n  "]))
def test_an_input_is_the_text_in_the_arguments_however_they_are_written_and_cut(
    text: str, cuts: list[int], ascii_only: bool, blank: str
) -> None:
    arguments = f'{blank}{{{blank}"input"{blank}:{blank}{json.dumps(text, ensure_ascii=ascii_only)}{blank}}}'
    reader = InputReader()
    told = [reader.push(piece) for piece in in_pieces(arguments, cuts)]
    assert "".join(told) + reader.finish() == text == input_of(arguments)


@given(CUTS)
def test_what_is_told_never_has_to_be_taken_back(cuts: list[int]) -> None:
    reader, told = InputReader(), ""
    for piece in in_pieces(json.dumps({"input": PATCH}), cuts):
        told += reader.push(piece)
        assert PATCH.startswith(told)
    assert told == PATCH


@pytest.mark.parametrize(
    "arguments", ['{"cmd": "ls"}', "ls -l", '["a"]', '{"input": 5}', '{"inputs": "x"}', "", '{"inp']
)
def test_arguments_of_another_form_are_handed_over_as_they_are(arguments: str) -> None:
    for cut in range(len(arguments) + 1):
        reader = InputReader()
        assert reader.push(arguments[:cut]) + reader.push(arguments[cut:]) + reader.finish() == arguments


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ('{"input": "cut o', "cut o"),
        ('{"input": "half \\ud83d\\u', "half "),
        ('{"input": "half \\ud83d x"}', "half \ufffd x"),
        ('{"input": "half \\ud83d\\n"}', "half \ufffd\n"),
        ('{"input": "\\ude00"}', "\ufffd"),
    ],
)  # fmt: skip
def test_what_is_no_whole_string_is_told_as_far_as_it_goes(arguments: str, told: str) -> None:
    assert input_of(arguments) == told


def test_the_arguments_of_an_input_hold_it() -> None:
    assert json.loads(arguments_of(PATCH)) == {"input": PATCH}
    assert input_of(arguments_of(PATCH)) == PATCH


def grammar(syntax: str, definition: str) -> dict[str, Any]:
    return {"type": "custom", "name": "t", "format": {"type": "grammar", "syntax": syntax, "definition": definition}}


def test_a_grammar_is_told_and_a_regular_expression_kept_to() -> None:
    shown, free = as_function({"type": "custom", "name": "t", "description": "Says it."}, "tools[0]")
    assert (shown["function"]["name"], shown["function"]["description"], free) == ("t", "Says it.", None)
    shown, free = as_function(grammar("lark", "start: /x/"), "tools[0]")
    assert "start: /x/" in shown["function"]["description"]
    assert free == "tools[0].format (lark grammar)"
    shown, free = as_function(grammar("regex", "a+|b"), "tools[0]")
    assert parameters_of(shown)["properties"]["input"]["pattern"] == "^(?:a+|b)$"
    assert free is None


@pytest.mark.parametrize(
    "tool",
    [{}, {"name": 5}, {"name": "t", "format": "text"}, {"name": "t", "format": {"type": "grammar", "syntax": "lark"}}],
)
def test_a_tool_that_says_too_little_is_refused_and_named(tool: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=r"tools\[3\]"):
        as_function({"type": "custom", **tool}, "tools[3]")
