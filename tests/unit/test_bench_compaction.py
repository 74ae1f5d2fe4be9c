"""The compaction suite of `akashic bench memory`: its methods, their budgets, and what counts as kept."""

from __future__ import annotations

import json
from pathlib import Path

from akashic_daemon.memory.evaluation.__main__ import measure
from akashic_daemon.memory.evaluation.after_compaction import Found, add, first, within
from akashic_daemon.memory.evaluation.compaction import RHO
from akashic_daemon.memory.evaluation.corpus import Conversation, Question
from akashic_daemon.memory.memory import Memory, Said
from akashic_daemon.store.memory.store import open_memory_store
from akashic_daemon.types import SystemClock
from hashed_words import HashedWords

_FACTS = ("My brother Marco restores violins in Cremona", "The ferry to Elba leaves from Piombino", "Yuki grows wasabi")


def test_each_method_stays_within_the_budget_and_the_raw_text_loses_nothing(tmp_path: Path) -> None:
    turns = [
        {"speaker": "Ann", "dia_id": f"D1:{n}", "text": f"{_FACTS[n // 8]}. So nice to see you!" if n % 8 == 0 else "Oh wow, great!"}
        for n in range(24)
    ]  # fmt: skip
    asked = [{"question": "Who restores violins?", "evidence": ["D1:0"], "category": 4}]
    path = tmp_path / "talk.json"
    path.write_text(json.dumps([{"conversation": {"session_1": turns}, "qa": asked}]))
    raw, *methods = measure([path], ["compaction"])["suites"]["compaction"]["rows"]
    assert (raw["rho"], raw["evidence_content"], raw["recall_at_10"]) == (1.0, 1.0, 1.0)
    assert [row["method"] for row in methods if row["rho"] > RHO + 0.01] == []
    assert raw["recall_equal_tokens"] == raw["recall_equal_tokens_kept"] == raw["reindexed_equal_tokens"] == 1.0
    ours = methods[0]
    assert ours["method"] == "akashic"
    assert ours["evidence_kept"] == 1.0


def test_what_fits_as_many_tokens_is_counted_and_turns_of_which_nothing_is_left_are_passed_over() -> None:
    ranked = [(frozenset({"a"}), 30), (frozenset({"b", "c"}), 0), (frozenset({"d"}), 40), (frozenset({"e"}), 20)]
    assert within(ranked, 50) == {"a", "e"}
    assert within(ranked, 90) == {"a", "d", "e"}
    assert first(ranked, 2) == {"a", "d"}


def test_a_shortened_turn_is_found_by_words_that_it_lost_and_counts_as_kept_only_if_it_is(tmp_path: Path) -> None:
    said = (
        Said("Ann", "My brother Marco restores violins in Cremona", "t1"),
        Said("Bob", "The ferry leaves at noon", "t2"),
    )
    question = Question("Who restores violins?", frozenset({"t1"}), 4)
    store = open_memory_store(tmp_path / "memory.sqlite", SystemClock())
    found = Found()
    talk = Conversation("talk", (("s", said),), (question,))
    add(found, Memory(store, HashedWords()), talk, "cut", {"t1": "Marco", "t2": ""}, frozenset())
    store.close()
    row = found.row()
    assert (row["recall_equal_tokens"], row["recall_equal_tokens_kept"], row["recall_at_10"]) == (1.0, 0.0, 1.0)


_PLACES = ("Piombino", "Ancona", "Trieste", "Livorno", "Genoa", "Bari", "Salerno", "Messina")
_THINGS = ("wasabi", "saffron", "barley", "indigo", "hemp", "cork", "mulberry", "vanilla")


def test_a_fixed_share_leaves_as_much_and_less_of_the_evidence_where_only_some_chunks_say_something(
    tmp_path: Path,
) -> None:
    said = []
    for n in range(96):
        facts = n % 24 < 8  # eight turns of facts, then sixteen of small talk about less and less
        fact = f"My cousin number {'abcdefghijkl'[n // 8]} grows {_THINGS[n % 8]} near {_PLACES[(n + n // 24) % 8]}."
        said.append({"speaker": "Ann", "dia_id": f"D1:{n}", "text": fact if facts else f"It was a {'very ' * (n % 5)}nice evening, and the weather stayed mild."})  # fmt: skip
    evidence = [turn["dia_id"] for turn in said if "cousin" in str(turn["text"])]
    asked = [{"question": "Who grows what?", "evidence": [one], "category": 4} for one in evidence]
    path = tmp_path / "talk.json"
    path.write_text(json.dumps([{"conversation": {"session_1": said}, "qa": asked}]))
    suite = measure([path], ["adaptive"])["suites"]["adaptive"]
    assert suite["target_points"] == 4
    for row in suite["rows"]:
        adaptive, *fixed = row["methods"].values()
        assert adaptive["rho"] == row["rho"]
        assert all(abs(method["rho"] - row["rho"]) < 0.03 for method in fixed)
    half = next(row for row in suite["rows"] if row["rho"] < 0.4)["methods"]
    assert half["adaptive"]["evidence_kept"] > half["fixed: 8 turns"]["evidence_kept"] + 0.2
