"""Any policy's likelihood is what fidelity's own variants measure of the same one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from akashic_cli.__main__ import main

pytest.importorskip("llama_cpp")
from akashic_daemon.engine.llama_cpp import LlamaCppEngine, LlamaCppOptions
from akashic_daemon.errors import BadRequest
from akashic_daemon.fidelity.policies import PolicyScorer
from akashic_daemon.fidelity.score import Scorer
from akashic_daemon.fidelity.turns import Run
from akashic_daemon.fidelity.views import ViewScorer
from akashic_daemon.program.policy import load, parse_policy
from akashic_daemon.trajectory.message import Message, Role

pytestmark = pytest.mark.model

ROLES = (Role.ASSISTANT, Role.TOOL)
MESSAGES = (
    Message(Role.SYSTEM, "be brief"),
    Message(Role.USER, "list it"),
    *(Message(ROLES[i % 2], f"part {i} of it") for i in range(7)),
)
RUN = Run("short", MESSAGES, 0)


@pytest.fixture
def engine(tiny_gguf: Path) -> Iterator[LlamaCppEngine]:
    made = LlamaCppEngine(
        LlamaCppOptions("tiny", tiny_gguf, kv_type="f32", kv_tokens=2048, max_sequences=16, threads=1)
    )
    yield made
    made.close()


def test_a_policy_is_scored_as_the_variant_of_the_same_name(engine: LlamaCppEngine) -> None:
    told: list[dict[str, object]] = []
    policies = {"keep-1": load("tool-rolling-drop:keep=1"), "nothing": parse_policy("policy none\n")}
    found = PolicyScorer(engine, policies, 99, told.append).score([RUN])["runs"]["short"]
    expected = Scorer(engine, (1,), told.append).score([RUN])["runs"][0]["variants"]
    assert found["keep-1"]["nll"] == pytest.approx(expected["drop keep 1"]["nll"], abs=1e-4)
    assert found["keep-1"]["kl"] == pytest.approx(expected["drop keep 1"]["kl"], abs=1e-4)
    assert found["full"]["nll"] == pytest.approx(expected["full"]["nll"], abs=1e-4)
    assert found["keep-1"]["kl"] > 0
    assert found["keep-1"]["agreement"] <= 1
    assert found["nothing"] == {**found["full"], "kl": 0.0}
    assert found["full"]["agreement"] == 1


def test_texts_that_clients_send_are_scored_beside_policies_of_the_cache(engine: LlamaCppEngine) -> None:
    raw = [{"role": m.role.value, "content": m.content} for m in MESSAGES]
    answer = len(raw) - 1
    prompts = {"same": raw[:answer], "short": [raw[0], *raw[answer - 1 : answer]]}
    runs = [{"run": "r", "messages": raw, "turns": [{"answer": answer, "prompts": prompts}]}]
    scorer = ViewScorer(engine, {"keep-1": load("tool-rolling-drop:keep=1")}, lambda _: None)
    (found,) = scorer.score(runs)
    alone = PolicyScorer(engine, scorer.policies, 1, lambda _: None).score([RUN])["runs"]["short"]
    views = found["views"]
    assert views["full"]["nll"] == pytest.approx(alone["full"]["nll"], abs=1e-4)
    assert views["keep-1"]["nll"] == pytest.approx(alone["keep-1"]["nll"], abs=1e-4)
    assert views["same"] == {**views["full"], "kl": 0.0}
    assert views["short"]["kl"] > 0
    assert views["short"]["tokens"] == views["full"]["tokens"]
    assert scorer.left_out == 0


def test_few_turns_of_a_run_are_read_when_that_is_asked(engine: LlamaCppEngine) -> None:
    every = PolicyScorer(engine, {}, 99, lambda _: None).score([RUN])["runs"]["short"]["full"]["tokens"]
    one = PolicyScorer(engine, {}, 1, lambda _: None).score([RUN])["runs"]["short"]["full"]["tokens"]
    assert 0 < one < every


def test_a_run_whose_time_is_over_counts_with_the_answers_that_every_policy_has_read(engine: LlamaCppEngine) -> None:
    policies = {"keep-1": load("tool-rolling-drop:keep=1")}
    whole = PolicyScorer(engine, policies, 99, lambda _: None).score([RUN])["runs"]["short"]
    seen = set()
    for pieces in range(0, 40, 3):
        asked = 0

        def is_over(most: int = pieces) -> bool:
            nonlocal asked
            asked += 1
            return asked > most

        runs = PolicyScorer(engine, policies, 99, lambda _: None, is_over).score([RUN])["runs"]
        for figures in runs.values():
            assert figures["keep-1"]["tokens"] == figures["full"]["tokens"] <= whole["full"]["tokens"]
        seen.add(runs["short"]["full"]["tokens"] if runs else 0)
    assert 0 in seen
    assert len(seen) > 2
    assert max(seen) == whole["full"]["tokens"]


def test_runs_that_never_fit_are_refused(engine: LlamaCppEngine) -> None:
    long = Run("long", (Message(Role.USER, "word " * 4000), Message(Role.ASSISTANT, "no")), 0)
    with pytest.raises(BadRequest, match="no answer"):
        PolicyScorer(engine, {}, 1, lambda _: None).score([long])


def test_an_evolution_chooses_by_the_models_likelihood_and_reports_it_with_intervals(
    tmp_path: Path, home: Path, tiny_gguf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = []
    for number in range(4):
        messages = [{"role": m.role, "content": f"{m.content} {number}"} for m in MESSAGES]
        files.append(tmp_path / f"run-{number}.json")
        files[-1].write_text(json.dumps({"messages": messages}))
    options = [
        "--evaluations",
        "20",
        "--quality-turns",
        "1",
        "--model",
        str(tiny_gguf),
        "--out",
        str(tmp_path / "p.policy"),
    ]
    assert main(["policy", "evolve", *map(str, files), *options, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["model"] == "tiny"
    rows = {row["policy"]: row for row in result["held_out"]}
    assert rows["none"]["nll_over_full"]["value"] == 0
    assert rows["keep-12"]["nll_over_keep_12"] == {"value": 0, "low": 0, "high": 0}
    read = {name: row["agreement"] for name, row in rows.items() if "agreement" in row}
    assert {"none", "keep-12", "keep-4", result["chosen"]} == set(read), "a model reads what the verdict needs"
    assert all(found["low"] <= found["value"] <= found["high"] for found in read.values())
