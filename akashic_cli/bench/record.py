"""A run of suites as one JSON file: what was measured, on what, by which command. The newest are kept as history.

{"schema": 1, "id", "size", "status", "started_at", "version", "command", "machine", "inputs", "suites": [
{"suite", "target", "status": done|failed|skipped|interrupted, "reason", "seconds", "measures": [
{"name", "value", "unit", "better": lower|higher|neither, "samples": [...], "goal"}], "raw"}]}
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from akashic_cli.render.files import write_atomically
from akashic_daemon.errors import NotFound, UsageError
from akashic_daemon.paths import ensure_private_dir, find_paths

SCHEMA = 1
DONE, FAILED, SKIPPED, INTERRUPTED, RUNNING = "done", "failed", "skipped", "interrupted", "running"


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure, and what it is the middle of, where that was kept; two runs are compared by these samples.

    goal: what this project wants it to be at most or at least, by `better`.
    """

    name: str
    value: float
    unit: str
    better: str = "neither"
    samples: tuple[float, ...] = ()
    goal: float | None = None

    @property
    def meets_goal(self) -> bool | None:
        """Whether the goal is met, None where there is none."""
        if self.goal is None or self.better == "neither":
            return None
        return self.value <= self.goal if self.better == "lower" else self.value >= self.goal


@dataclass(slots=True)
class SuiteRecord:
    """What a suite came to against one target: ourselves, or a peer by its name."""

    suite: str
    target: str
    status: str
    reason: str = ""
    seconds: float = 0.0
    measures: list[Measure] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Record:
    """A whole run."""

    id: str
    size: str
    started_at: str
    version: str
    command: str
    machine: dict[str, Any]
    inputs: dict[str, Any]
    status: str = RUNNING
    suites: list[SuiteRecord] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"schema": SCHEMA, **asdict(self)}

    def find(self, suite: str, target: str) -> SuiteRecord | None:
        """Return what a suite came to, None when it wasn't run."""
        return next((s for s in self.suites if (s.suite, s.target) == (suite, target)), None)


def from_json(values: Any, source: str) -> Record:
    """Return the record that `to_json` gave. Raises UsageError naming the file."""
    try:
        if values["schema"] != SCHEMA:
            raise ValueError(f"its schema is {values['schema']}, {SCHEMA} is known")
        suites = [
            SuiteRecord(**{**entry, "measures": [_measure(m) for m in entry["measures"]]}) for entry in values["suites"]
        ]
        rest = {key: value for key, value in values.items() if key not in {"schema", "suites"}}
        return Record(**rest, suites=suites)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"reading the bench run {source}: {error}", hint="it must be a file of `akashic bench run`"
        ) from error


def _measure(values: dict[str, Any]) -> Measure:
    samples = tuple(float(sample) for sample in values["samples"])
    return Measure(
        values["name"], float(values["value"]), values["unit"], values["better"], samples, values.get("goal")
    )


def history_dir() -> Path:
    """Return the folder of past runs."""
    return find_paths().log_dir.parent / "bench"


def save(record: Record) -> Path:
    """Write a run into the history and return its file."""
    path = ensure_private_dir(history_dir()) / f"{record.id}.json"
    write_atomically(path, json.dumps(record.to_json(), indent=1, ensure_ascii=False) + "\n")
    return path


def load(path: Path) -> Record:
    """Read a run from a file. Raises UsageError, NotFound."""
    try:
        return from_json(json.loads(path.read_text("utf-8")), str(path))
    except FileNotFoundError as error:
        raise NotFound(
            f"reading the bench run {path}: there is no such file", hint="`akashic bench history`"
        ) from error
    except (OSError, ValueError) as error:
        raise UsageError(f"reading the bench run {path}: {error}", hint="name a file of `akashic bench run`") from error


def history() -> tuple[list[Record], list[str]]:
    """Return the past runs, the newest first, and what is wrong with files that can't be read."""
    found, problems = [], []
    for path in sorted(history_dir().glob("*.json"), reverse=True):
        try:
            found.append(load(path))
        except UsageError as error:
            problems.append(error.message)
    return found, problems


def find(name: str) -> Record:
    """Return the run of a file, of an id, or `latest`. Raises UsageError, NotFound."""
    if name == "latest":
        past, _ = history()
        if not past:
            raise NotFound("looking for the latest bench run: there is none", hint="`akashic bench run all --quick`")
        return past[0]
    kept = history_dir() / f"{name}.json"
    return load(kept if kept.is_file() else Path(name))


def table_rows(records: Sequence[Record]) -> list[tuple[str, ...]]:
    """Return a row for each run."""
    return [
        (
            record.id,
            record.size,
            record.status,
            " ".join(f"{s.suite}{'' if s.target == 'akashic' else '@' + s.target}:{s.status}" for s in record.suites),
        )
        for record in records
    ]
