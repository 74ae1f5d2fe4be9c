"""Long-term memory on conversations with known evidence: measured by a process of its own, shown here."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from akashic_daemon.errors import StoreError, TranscriptError, from_wire

COLUMNS = ("METHOD", "RECALL@5", "@10", "@20", "WITHIN 250", "500", "1,000", "2,000", "4,000 TOKENS", "MULTI-HOP@10")
MODULE = "akashic_daemon.memory.evaluation"


ADAPTIVE_COLUMNS = ("RHO", "BUDGET", "EVIDENCE KEPT", "ANSWER WORDS", "ADAPTIVE KEEPS MORE")
_HALF = 0.5
LEFT_COLUMNS = (
    "COMPACTED BY", "RHO", "EVIDENCE KEPT", "ANSWER WORDS", "RECALL@10", "EQUAL TOKENS", "AND KEPT", "WITHIN 1,000",
    "REINDEXED@10", "EQUAL TOKENS", "WITHIN 1,000",
)  # fmt: skip
_LEFT = (
    "rho", "evidence_kept", "answer_words", "recall_at_10", "recall_equal_tokens", "recall_equal_tokens_kept",
    "recall_within_1000", "reindexed_at_10", "reindexed_equal_tokens", "reindexed_within_1000",
)  # fmt: skip


def measure(files: Sequence[Path], *, leave_one_out: bool = False, compaction: bool = False) -> dict[str, Any]:
    """Run the measuring process and return its result. Raises what it raised, StoreError when it just died."""
    for path in files:
        if not path.is_file():
            raise TranscriptError(f"reading the conversations {path}: there is no such file", hint="name a JSON file")
    command = [sys.executable, "-m", MODULE, "--suite", "retrieval", "recall"]
    command += ["leave-one-out"] if leave_one_out else []
    command += ["compaction", "adaptive"] if compaction else []
    command += ["--", *map(str, files)]
    child = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False)
    news = json.loads(child.stdout) if child.stdout.strip() else {}
    if "error" in news:
        raise from_wire(news["error"])
    if "result" not in news:
        raise StoreError(
            f"measuring memory: its process ended with code {child.returncode} and no result",
            hint="what it wrote on stderr says why",
        )
    result: dict[str, Any] = news["result"]
    return result


def table_rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return a row for each method, in percent of the evidence."""
    return [
        (
            row["method"],
            *(_percent(share) for share in row["recall"].values()),
            *(_percent(share) for share in row["recall_within_tokens"].values()),
            _percent(row["by_category"].get("multi-hop", {}).get("10")),
        )
        for suite in result["suites"].values()
        for row in suite["rows"]
        if "recall" in row
    ]


def left_rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return a row for each method of compaction: what is left, and what is found of it, in percent."""
    rows = result["suites"].get("compaction", {}).get("rows", [])
    return [(row["method"], *(_percent(row[figure]) for figure in _LEFT)) for row in rows]


def adaptive_rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return a row for each way to share out a budget, at each actual rho, in percent."""
    suite = result["suites"].get("adaptive", {"rows": []})
    return [
        (
            f"{row['rho']:.2f}",
            name,
            _percent(method["evidence_kept"]),
            _percent(method["answer_words"]),
            "" if name == "adaptive" else f"{_gain(row, name):+.1f}",
        )
        for row in suite["rows"]
        for name, method in row["methods"].items()
    ]


def adaptive_line(result: dict[str, Any]) -> str:
    """Return in a sentence what adapting to density gives, at about half of the text, beside what it is to give."""
    suite = result["suites"]["adaptive"]
    row = min(suite["rows"], key=lambda row: abs(row["rho"] - _HALF))
    gains = [f"{_gain(row, name):+.1f} against {name}" for name in row["methods"] if name != "adaptive"]
    return (
        f"evidence turns that one budget for all keeps more than the same share for each chunk, at an actual rho of "
        f"{row['rho']:.2f}, in points: {'; '.join(gains)} (target: {suite['target_points']:g})"
    )


def _gain(row: dict[str, Any], name: str) -> float:
    methods = row["methods"]
    return 100 * float(methods["adaptive"]["evidence_kept"] - methods[name]["evidence_kept"])


def summary(result: dict[str, Any]) -> str:
    """Return the times in a sentence."""
    suite = result["suites"]["retrieval"]
    return (
        f"{suite['questions']:,} questions about {suite['turns']:,} turns; taken in at "
        f"{suite['ingest_turns_per_s']:,.0f} turns/s; a search took {suite['search_p50_ms']:.1f} ms (p50), "
        f"{suite['search_p95_ms']:.1f} ms (p95)"
    )


def recall_line(result: dict[str, Any]) -> str:
    """Return in a sentence what is put before questions, and how often wrongly."""
    suite = result["suites"]["recall"]
    (row,) = suite["rows"]
    line = (
        f"recalled before {_percent(row['recalled'])} % of the questions within {suite['budget_tokens']:,} tokens "
        f"({row['tokens']:,.0f} on average), with {_percent(row['evidence'])} % of the evidence"
    )
    if row["false_recall"] is None:
        return line
    return f"{line}; before {_percent(row['false_recall'])} % of {suite['foreign_questions']:,} questions about other conversations"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"
