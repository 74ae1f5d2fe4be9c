"""`bench kernels` and `bench decode`: the torch engine's figures against ceilings of the same run, as rows, a picture, measures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from akashic_cli.bench.child import Told, run_module
from akashic_cli.bench.record import Measure
from akashic_daemon.errors import StoreUnwritable

MODULE = "akashic_daemon.speed"
COLUMNS = ("WHAT", "MEASURED", "CEILING", "OF CEILING")


def measure(what: str, model: str | None, told: Told, *, full: bool) -> dict[str, Any]:
    """Run the measuring process, `what` being kernels or decode; raises what it raised."""
    arguments = ["--torch", what, *(["--full"] if full else []), *([] if model is None else ["--model", model])]
    return run_module(MODULE, arguments, told, doing=f"measuring {what} of the torch engine")


def table_rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return a row for each figure and ceiling."""
    return [
        (
            row["what"],
            f"{row['value']:,.1f} {row['unit']}",
            row["ceiling"] or "-",
            "absent" if row.get("absent") else "-" if row["of_ceiling"] is None else f"{row['of_ceiling']:.2f}",
        )
        for row in result["rows"]
    ]


def absences(result: dict[str, Any]) -> list[str]:
    """Return which ceilings weren't measured, and why, each reason once."""
    reasons = {(row["ceiling"], row["absent"]): None for row in result["rows"] if row.get("absent")}
    return [f"{ceiling} is absent: {reason}" for ceiling, reason in reasons]


def measures(result: dict[str, Any]) -> list[Measure]:
    """Return the figures in the form that runs are compared in; a ceiling that wasn't measured gives none."""
    out = []
    for row in result["rows"]:
        if row.get("absent"):
            continue
        name = row["what"] + (f" against {row['ceiling']}" if row["ceiling"] else "")
        if row["of_ceiling"] is None:
            out.append(Measure(name, row["value"], row["unit"], "higher"))
        else:
            out.append(Measure(name, row["of_ceiling"], "of the ceiling", "higher"))
    return out


def plot(result: dict[str, Any], path: Path) -> None:
    """Draw which share of its ceiling each figure reaches into a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [row for row in result["rows"] if row["of_ceiling"] is not None][::-1]
    figure = Figure(figsize=(9, 1.5 + 0.4 * len(rows)), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    panel = figure.subplots()
    panel.barh([f"{row['what']}\nagainst {row['ceiling']}" for row in rows], [row["of_ceiling"] for row in rows])
    panel.axvline(1.0, color="black", linewidth=1)
    panel.set_xlabel("of the ceiling measured in the same run (1: as fast)")
    figure.suptitle(f"torch engine, {result['suite']}, {result['device']}")
    try:
        canvas.print_figure(str(path), format="png", dpi=120)
    except OSError as error:
        raise StoreUnwritable(f"writing the picture {path}: {error.strerror}", hint="choose another --plot") from error
