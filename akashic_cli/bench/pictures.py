"""Plots of a run's figures as PNGs inside a page, one for light and one for dark; needs matplotlib."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

from akashic_cli.bench.record import Measure, Record, SuiteRecord

_INK = {"light": ("#1c2024", "#ffffff", "#0b63c5"), "dark": ("#e6e9ec", "#14171a", "#6cb2ff")}
_PEERS = ("#e07a1f", "#2e9e6b", "#a35fd0", "#c0392b")
_MOST_BARS = 14


@dataclass(frozen=True, slots=True)
class Picture:
    """A plot as base64 of a PNG, for each colour scheme."""

    caption: str
    light: str
    dark: str


def draw(record: Record) -> dict[str, Picture]:
    """Return a picture for each suite that has figures of one unit to compare, peers beside us."""
    pictures = {}
    for name in dict.fromkeys(suite.suite for suite in record.suites):
        group = [suite for suite in record.suites if suite.suite == name and suite.measures]
        shown = _shown(group[0].measures) if group else []
        if shown:
            caption = f"{shown[0].unit}; {'shorter' if shown[0].better == 'lower' else 'longer'} bars are better"
            pictures[name] = Picture(caption, *(_bars(group, shown, scheme) for scheme in ("light", "dark")))
    return pictures


def _shown(measures: Sequence[Measure]) -> list[Measure]:
    """Return the figures of the unit that most of them have, the first of equals; ratios of others aren't drawn."""
    units = [measure.unit for measure in measures if measure.better != "neither" and measure.unit != "x"]
    if not units:
        return []
    unit = max(dict.fromkeys(units), key=units.count)
    return [m for m in measures if m.unit == unit and m.better != "neither"][:_MOST_BARS]


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _bars(group: Sequence[SuiteRecord], shown: Sequence[Measure], scheme: str) -> str:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    ink, paper, mark = _INK[scheme]
    height = 0.28 / len(group) * 2
    figure = Figure(
        figsize=(8, 0.7 + 0.32 * len(shown) * max(1, len(group) / 2)), layout="constrained", facecolor=paper
    )
    canvas = FigureCanvasAgg(figure)
    panel = figure.subplots()
    panel.set_facecolor(paper)
    for number, suite in enumerate(group):
        values = {measure.name: measure.value for measure in suite.measures}
        # What a server can't do has no bar: one of no length would be a figure.
        known = [(place + number * height, values[m.name]) for place, m in enumerate(shown) if m.name in values]
        colour = mark if number == 0 else _PEERS[(number - 1) % len(_PEERS)]
        bars = panel.barh(
            [at for at, _ in known], [value for _, value in known], height=height, color=colour, label=suite.target
        )
        panel.bar_label(bars, fmt=_short, padding=3, color=ink, fontsize=8)
    panel.set_yticks([place + height * (len(group) - 1) / 2 for place in range(len(shown))], [m.name for m in shown])
    panel.invert_yaxis()
    panel.margins(x=0.12)
    panel.tick_params(colors=ink, labelsize=9)
    for side, spine in panel.spines.items():
        spine.set_visible(side in {"left", "bottom"})
        spine.set_color(ink)
    if len(group) > 1:
        panel.legend(facecolor=paper, labelcolor=ink, edgecolor=ink, fontsize=8)
    buffer = io.BytesIO()
    canvas.print_figure(buffer, format="png", dpi=130)
    return base64.b64encode(buffer.getvalue()).decode()
