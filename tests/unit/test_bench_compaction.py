"""The compaction suite of `akashic bench memory`: its methods, their budgets, and what counts as kept."""

from __future__ import annotations

import json
from pathlib import Path

from akashic_daemon.memory.evaluation.__main__ import measure
from akashic_daemon.memory.evaluation.compaction import RHO

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
    ours = methods[0]
    assert ours["method"] == "akashic"
    assert ours["evidence_kept"] == 1.0
