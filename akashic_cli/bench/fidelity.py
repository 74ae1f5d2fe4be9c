"""Fidelity of edited caches: measured by a process with an engine of its own, shown here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from akashic_cli.bench.child import Told, run_module
from akashic_cli.render.units import count
from akashic_daemon.errors import StoreUnwritable, TranscriptError, UsageError

COLUMNS = ("VARIANT", "NLL", "OVER FULL", "KL", "RUNS CUT", "OVER FULL THERE", "KL THERE", "VISIBLE", "COMPUTED")
MODULE = "akashic_daemon.fidelity"


def parse_keep(text: str) -> list[int]:
    """Read `--keep`: numbers, commas between. Raises UsageError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise UsageError(f"reading --keep {text!r}: it is no list of whole numbers", hint="e.g. --keep 12,4,1")
    keeps = [int(part) for part in parts]
    if len(set(keeps)) != len(keeps):
        raise UsageError(f"reading --keep {text!r}: a number stands there twice", hint="e.g. --keep 12,4,1")
    return keeps


def measure(transcripts: Sequence[Path], keeps: Sequence[int], model: str | None, told: Told) -> dict[str, Any]:
    """Run the measuring process and return its result. Raises what it raised, EngineError when it just died."""
    for path in transcripts:
        if not path.is_file():
            raise TranscriptError(f"reading the run {path}: there is no such file", hint="name a transcript")
    named = [] if model is None else ["--model", model]
    arguments = ["--keep", *map(str, keeps), *named, "--", *map(str, transcripts)]
    return run_module(MODULE, arguments, told, doing="measuring fidelity")


def table_rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return a row for each variant: means over the runs, and over those in which it cut anything."""
    return [
        (
            row["variant"],
            _nats(row["nll"]),
            _nats(row["nll_over_full"]),
            _nats(row["kl"]),
            count(row["cut_runs"]),
            _nats(row["cut_nll_over_full"]),
            _nats(row["cut_kl"]),
            count(round(row["visible_tokens"])),
            count(row["computed_tokens"]),
        )
        for row in result["summary"]
    ]


def _nats(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def plot(result: dict[str, Any], path: Path) -> None:
    """Draw what each variant loses, and what it computes, into a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [row for row in result["summary"] if row["keep"] is not None]
    keeps = sorted({row["keep"] for row in rows}, reverse=True)
    figure = Figure(figsize=(10, 4), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    panels = figure.subplots(1, 3)
    titles = (("nll_over_full", "NLL over full, nats a token"), ("kl", "KL to full, nats a token"))
    for panel, (key, title) in zip(panels, (*titles, ("computed_tokens", "tokens computed")), strict=True):
        for number, kind in enumerate(dict.fromkeys(row["kind"] for row in rows)):
            values = {row["keep"]: row[key] for row in rows if row["kind"] == kind}
            at = [index + 0.27 * (number - 1) for index in range(len(keeps))]
            panel.bar(at, [values[keep] for keep in keeps], width=0.25, label=kind)
        panel.set_xticks(range(len(keeps)), [f"keep {keep}" for keep in keeps])
        panel.set_title(title, fontsize="medium")
    panels[0].legend()
    figure.suptitle(f"{result['model']}, {len(result['runs'])} run(s)")
    try:
        canvas.print_figure(str(path), format="png", dpi=120)
    except OSError as error:
        raise StoreUnwritable(f"writing the picture {path}: {error.strerror}", hint="choose another --plot") from error
