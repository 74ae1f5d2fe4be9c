"""`policy evolve`: done by a process of its own, shown here."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from akashic_cli.bench.child import Told, run_module
from akashic_cli.render.units import count
from akashic_daemon.errors import Conflict, TranscriptError, UsageError
from akashic_daemon.evolve.search import BUDGETS

MODULE = "akashic_daemon.evolve"
COLUMNS = (
    "POLICY",
    "COST",
    "OVER KEEP-12",
    "LOW",
    "HIGH",
    "LOST",
    "NLL OVER KEEP-12",
    "AGREEMENT",
    "CACHED",
    "CUT OFF",
)


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line says."""

    transcripts: list[Path]
    held_out: list[Path]
    out: Path
    window: int
    prices: str
    seed: int
    evaluations: int
    generations: int | None
    minutes: float
    quality_turns: int
    model: str | None
    propose_url: str | None
    propose_model: str
    key_file: Path | None
    fresh: bool
    force: bool


def run(asked: Asked, told: Told) -> dict[str, Any]:
    """Evolve and return the result. Raises Conflict when the policy file is there, UsageError on a bad name."""
    for path in (*asked.transcripts, *asked.held_out):
        if not path.is_file():
            raise TranscriptError(f"reading the run {path}: there is no such file", hint="name a transcript")
    name = _name(asked.out)
    if asked.out.exists() and not asked.force:
        raise Conflict(f"writing {asked.out}: it exists", hint="name another --out, or add --force")
    state = asked.out.with_name(asked.out.name + ".state")
    if asked.fresh:
        state.unlink(missing_ok=True)
    options = {
        "transcripts": [str(path) for path in asked.transcripts],
        "held_out": [str(path) for path in asked.held_out],
        "window_tokens": asked.window,
        "prices": _prices(asked.prices),
        "seed": asked.seed,
        "evaluations": asked.evaluations,
        "generations": asked.generations,
        "minutes": asked.minutes,
        "quality_turns": asked.quality_turns,
        "model": asked.model,
        "propose_url": asked.propose_url,
        "propose_model": asked.propose_model,
        "key_file": None if asked.key_file is None else str(asked.key_file),
        "name": name,
        "state": str(state),
    }
    result = run_module(MODULE, [json.dumps(options)], told, doing="evolving policies")
    # Whatever a larger budget takes further keeps its state.
    if result["stopped"] not in BUDGETS:
        state.unlink(missing_ok=True)
    return result


def _name(out: Path) -> str:
    name = out.name.removesuffix(".policy")
    if out.suffix != ".policy" or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._:-]{0,127}", name):
        raise UsageError(
            f"evolving into {out}: a policy's file is called NAME.policy", hint="e.g. --out evolved.policy"
        )
    return name


def _prices(text: str) -> list[float]:
    from akashic_daemon.evolve.judge import Prices

    found = Prices.parse(text)
    return [found.computed, found.cached, found.output]


def last_words(result: dict[str, Any], out: Path) -> str:
    """Say why the search ended, and how to have the same once more."""
    said = f"wrote {out} after {result['evaluations']} policies in {result['generations']} generations"
    again = f"the same search again: {result['again']}"
    if result["stopped"] == "time":
        return f"{said}, as many as the time allowed; {again}"
    return f"{said} ({result['stopped']}); {again}"


def table_rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return a row for each policy on the held-out runs, the chosen one marked."""
    rows = []
    for row in result["held_out"]:
        ratio, nll, agreement = row["cost_over_keep_12"], row.get("nll_over_keep_12"), row.get("agreement")
        rows.append(
            (
                row["policy"] + (" *" if row["policy"] == result["chosen"] else ""),
                count(round(row["cost"])),
                *(f"{ratio[key]:.3f}" for key in ("value", "low", "high")),
                f"{row['lost']:.3f}",
                "-" if nll is None else f"{nll['value']:+.4f}",
                "-" if agreement is None else f"{agreement['value']:.3f}",
                count(row["cached_tokens"]),
                count(row["overflowing_turns"]),
            )
        )
    return rows
