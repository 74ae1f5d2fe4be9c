"""What a model thinks of the recorded answers after what each policy made of the history: whether cheap ones are worse.

The summaries are those that were written in the measurement, so what is judged is what was paid for. Policies of the
server are carried out on the cache of the whole history. A process with an engine of its own reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from akashic_cli.bench.agents.load import Summary
from akashic_cli.bench.agents.strategies import Client, Setting, is_summarising, meaning
from akashic_cli.bench.agents.workload import Episode
from akashic_cli.bench.child import Told, run_module
from akashic_cli.bench.transcripts import JsonObject
from akashic_daemon.evolve.fronts import bootstrap

MODULE = "akashic_daemon.fidelity.views"
COLUMNS = ("POLICY", "NLL", "OVER FULL", "KL", "AGREEMENT", "OVER", "BY", "LOW", "HIGH")
FULL = "full"


def likelihood(
    episodes: Sequence[Episode],
    policies: Sequence[str],
    setting: Setting,
    summaries: Mapping[str, Sequence[Summary]],
    most_turns: int,
    model: str | None,
    told: Told,
    seed: int = 1,
) -> JsonObject:
    """Return the NLL of recorded answers by policy, and its difference to each summarising one, with intervals over runs."""
    server = {name: policy for name in policies if (policy := _cache_policy(name, setting)) is not None}
    texts = [name for name in policies if name not in server and meaning(name, setting)[0] != "none"]
    first: dict[str, int] = {}
    for number, episode in enumerate(episodes):
        first.setdefault(episode.name, number)
    runs = [_run(episodes[number], number, texts, setting, summaries, most_turns) for number in first.values()]
    asked = {"model": model, "policies": server, "runs": runs}
    with TemporaryDirectory() as folder:
        file = Path(folder) / "views.json"
        file.write_text(json.dumps(asked), "utf-8")
        found = run_module(MODULE, [str(file)], told, doing="measuring the likelihood of answers")
    return {**found, "turns_a_run": most_turns, **compared(found["runs"], policies, seed)}


def _cache_policy(name: str, setting: Setting) -> str | None:
    kind, its = meaning(name, setting)
    return f"tool-rolling-drop:keep={its.keep}" if kind == "drop" else None


def _run(
    episode: Episode,
    number: int,
    texts: Sequence[str],
    setting: Setting,
    summaries: Mapping[str, Sequence[Summary]],
    most_turns: int,
) -> JsonObject:
    """Return one run: its messages, and for some of its answers what each client sent before them."""
    wanted = _late(len(episode.turns), most_turns)
    prompts: dict[int, JsonObject] = {turn: {} for turn in wanted}
    messages = [dict(message) for message in episode.messages]
    for name in texts:
        client = Client(name, setting)
        written = {s.turn: s.text for s in summaries.get(name, ()) if s.number == number}
        for turn, asked in enumerate(episode.turns):
            if turn in written:
                before = asked if not client.is_early else episode.turns[turn - 1]
                client.summarised(messages[: before.history], written[turn])
            if turn in prompts:
                prompts[turn][name] = client.prompt(messages[: asked.history])
    turns = [{"answer": episode.turns[turn].history, "prompts": found} for turn, found in prompts.items()]
    return {"run": episode.name, "messages": messages, "turns": turns}


def _late(count: int, most: int) -> list[int]:
    """Return so many turns at most, spread, the last among them: late ones are what a policy changes."""
    if count <= most:
        return list(range(count))
    return sorted({count - 1 - round(i * count / most) for i in range(most)})


def compared(runs: Sequence[JsonObject], policies: Sequence[str], seed: int) -> JsonObject:
    """Return the mean over runs of each policy's NLL, and how much it is over each summarising policy's."""

    def nll(run: JsonObject, name: str) -> float:
        return _figure(run, name, "nll")

    def gap(name: str, base: str) -> JsonObject:
        gaps = [nll(run, name) - nll(run, base) for run in runs]
        found = bootstrap(len(gaps), lambda at: sum(gaps[i] for i in at) / len(at), seed).to_json()
        return {"policy": name, "base": base, **found}

    def mean(name: str, figure: str) -> float:
        return sum(_figure(run, name, figure) for run in runs) / len(runs)

    rows: list[dict[str, Any]] = [
        {"policy": name, "nll": mean(name, "nll"), "kl": mean(name, "kl"), "agreement": mean(name, "agreement")}
        for name in policies
    ]
    bases = [name for name in policies if is_summarising(name)]
    over = [gap(name, base) for name in policies if not is_summarising(name) for base in bases]
    return {"policies": rows, "over_full": [gap(name, FULL) for name in policies], "over_summarising": over}


def _figure(run: JsonObject, name: str, figure: str) -> float:
    # A policy that sends the whole history is what `full` measured.
    views: dict[str, dict[str, float]] = run["views"]
    return views.get(name, views[FULL])[figure]


def table_rows(found: JsonObject) -> list[tuple[str, ...]]:
    """Return a row for each policy and summarising one that it is compared with."""
    over = {entry["policy"]: entry["value"] for entry in found["over_full"]}
    rows = []
    for row in found["policies"]:
        own = (
            row["policy"],
            f"{row['nll']:.4f}",
            f"{over[row['policy']]:+.4f}",
            f"{row['kl']:.4f}",
            f"{row['agreement']:.3f}",
        )
        beside = [entry for entry in found["over_summarising"] if entry["policy"] == row["policy"]]
        for number, entry in enumerate(beside):
            figures = tuple(f"{entry[key]:+.4f}" for key in ("value", "low", "high"))
            rows.append((own if number == 0 else ("",) * 5) + (entry["base"], *figures))
        if not beside:
            rows.append((*own, "-", "-", "-", "-"))
    return rows
