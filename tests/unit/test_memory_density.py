"""Density without a model: kinds of content, estimated rho, and when a chunk is full."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from akashic_daemon.memory.density import Kind, estimate, gate_tokens, kind_of

_REPLAYS = Path(__file__).resolve().parents[2] / "../shared/data/replays"


def _three(_term: str) -> float:
    return 3.0


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("def add(a, b):\n    return a + b\n\nclass Sum:\n    total = 0\n", Kind.CODE),
        ("     1→import os\n     2→\n     3→def home() -> str:\n     4→    return os.sep\n", Kind.CODE),
        ("Here it is:\n```\nlet x be\nthe sum of the others\nand all that follows\n```\n", Kind.CODE),
        ("12:00:01 INFO started\n12:00:02 ERROR no such file\n12:00:02 INFO stopped\n", Kind.LOG),
        ("src/a.py:12: unused\nsrc/b.py:13: unused\n./README.md\n", Kind.LOG),
        ("| a | b |\n| --- | --- |\n| 1 | 2 |\n", Kind.TABLE),
        ("name,place,year,price\nAnn,Lyon,2019,3\nBob,Bern,2020,4\n", Kind.TABLE),
        ("I went home, and then, well, I slept. It was late! Did you see the moon: so red?", Kind.PROSE),
        ("- milk\n- bread for Ann\n    - the dark one\n- 2 apples", Kind.PROSE),
        ("昨日はとても楽しかった。また会いましょう。", Kind.PROSE),
        ("", Kind.PROSE),
    ],
)
def test_the_kind_is_what_most_of_the_text_is(text: str, kind: Kind) -> None:
    assert kind_of(text) is kind
    assert kind_of(text).is_dense == (kind is not Kind.PROSE)


def test_dense_text_is_kept_but_for_lines_seen_before() -> None:
    log = "".join(f"12:00:{n:02} INFO step {n} done\n" for n in range(40))
    lines: set[int] = set()
    assert estimate(log, _three, {}, lines).estimated_rho == 1.0
    again = estimate(log, _three, {}, lines)
    assert again.repeated_share > 0.9
    assert again.estimated_rho == pytest.approx(0.1)


def test_prose_that_says_new_things_is_denser_than_what_was_said_before() -> None:
    text = "My brother Marco restores violins in Cremona"
    new = estimate(text, _three, {}, set())
    old = estimate(text, _three, Counter(dict.fromkeys(["brother", "marco", "restor", "violin", "cremona"], 30)), set())
    chatter = estimate(
        "It is so very good to see you here again, and how are you all doing these days?", _three, {}, set()
    )
    assert new.estimated_rho > old.estimated_rho
    assert new.estimated_rho > chatter.estimated_rho


def test_a_chunk_of_small_talk_is_sealed_later_than_one_of_code() -> None:
    assert gate_tokens(1.0) == 1024
    assert gate_tokens(0.25) == 2048
    assert gate_tokens(0.0) == 4096


@pytest.mark.skipif(not _REPLAYS.is_dir(), reason="the agent runs aren't here")
def test_what_tools_of_an_airline_answered_is_dense_and_what_was_said_is_not() -> None:
    run = json.loads((_REPLAYS / "tau-airline-03.json").read_text())
    messages = run if isinstance(run, list) else run["messages"]
    chars: Counter[tuple[str, bool]] = Counter()
    for message in messages:
        if text := message.get("content"):
            chars[message["role"], kind_of(text).is_dense] += len(text)
    assert chars["tool", True] > 9 * chars["tool", False]
    assert chars["user", True] == 0
