"""Pictures: of a replay, tokens and first-token time turn by turn; of the tiers, both for each scenario."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from akashic_daemon.errors import StoreUnwritable, Unsupported

if TYPE_CHECKING:
    from matplotlib.backends.backend_agg import FigureCanvasAgg


def require_matplotlib() -> None:
    """Raise Unsupported when pictures can't be drawn; asked before the long work, not after it."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise Unsupported(
            "drawing --plot: matplotlib isn't installed", hint="`./install.sh --with plot`, or leave out --plot"
        ) from error


def plot(result: dict[str, Any], path: Path) -> None:
    """Draw the replay into a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 7), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    tokens, times = figure.subplots(2, 1, sharex=True)
    turns = [turn for run in result["runs"] for turn in run["turn_list"]]
    longest = max((turn["turn"] for turn in turns), default=-1) + 1
    by_turn = [[turn for turn in turns if turn["turn"] == k] for k in range(longest)]
    for key, label in (
        ("prompt_tokens", "prompt"),
        ("computed_tokens", "computed"),
        ("unique_new_tokens", "unique new"),
    ):
        tokens.plot([sum(t[key] for t in group) for group in by_turn], label=label, marker=".")
    tokens.set_ylabel(f"tokens of {len(result['runs'])} run(s)")
    tokens.set_ylim(bottom=0)
    tokens.legend()
    for run in result["runs"]:
        times.plot(
            [t["turn"] for t in run["turn_list"]], [t["ttft_s"] for t in run["turn_list"]], marker=".", label=run["run"]
        )
    times.set_ylabel("first token, s")
    times.set_xlabel("turn")
    times.set_ylim(bottom=0)
    if len(result["runs"]) > 1:
        times.legend(fontsize="small")
    figure.suptitle(f"{result['target']}, edit {result['edit']}, {result['agents']} agent(s)")
    _write(canvas, path)


def plot_tiers(result: dict[str, Any], path: Path) -> None:
    """Draw first-token times and tokens of each scenario of the tiers into a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.5), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    times, tokens = figure.subplots(1, 2)
    rows = result["summary"]
    places = range(len(rows))
    names = [row["scenario"] for row in rows]
    times.bar(places, [row["first_token_s"] for row in rows])
    times.set_ylabel("first token, s")
    below = [0.0] * len(rows)
    parts = {tier: [(row["tokens_by_tier"] or {}).get(tier, 0) for row in rows] for tier in ("gpu", "ram", "ssd")}
    # A peer doesn't say where what it reused was.
    parts["reused"] = [0 if row["tokens_by_tier"] else row["prompt_tokens"] - row["computed_tokens"] for row in rows]
    for label, values in {"computed": [row["computed_tokens"] for row in rows], **parts}.items():
        tokens.bar(places, values, bottom=below, label=label)
        below = [under + value for under, value in zip(below, values, strict=True)]
    tokens.set_ylabel("prompt tokens")
    tokens.legend()
    for panel in (times, tokens):
        panel.set_xticks(places, names, rotation=40, ha="right")
    figure.suptitle(f"{result['model']}: the next turn, by where its KV is")
    _write(canvas, path)


def _write(canvas: FigureCanvasAgg, path: Path) -> None:
    try:
        canvas.print_figure(str(path), format="png", dpi=120)
    except OSError as error:
        raise StoreUnwritable(f"writing the picture {path}: {error.strerror}", hint="choose another --plot") from error
