"""A run for people: Markdown, or one HTML file with its plots inside, readable in light and dark."""

from __future__ import annotations

from html import escape
from typing import Any

from akashic_cli.bench.peers import OURS
from akashic_cli.bench.pictures import Picture
from akashic_cli.bench.record import DONE, Measure, Record, SuiteRecord
from akashic_cli.bench.suites import SUITES
from akashic_cli.render.units import duration, size

_LOWER, _HIGHER = "less is better", "more is better"
_STYLE = """
:root { color-scheme: light dark; --ink: #1c2024; --soft: #5c6670; --line: #d5dae0; --paper: #fff; --band: #f4f6f8; --mark: #0b63c5 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ec; --soft: #9aa4ae; --line: #343b43; --paper: #14171a; --band: #1c2126; --mark: #6cb2ff } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem; margin-bottom: 0 } h2 { font-size: 1.2rem; margin: 2.2rem 0 .3rem; border-bottom: 1px solid var(--line) }
p, .soft { color: var(--soft) } code { background: var(--band); padding: .1rem .3rem; border-radius: 3px; overflow-wrap: anywhere }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums } th { text-align: left; color: var(--soft); font-weight: 600 }
td, th { padding: .25rem .6rem; border-bottom: 1px solid var(--line) } .number { text-align: right; white-space: nowrap }
.wide { overflow-x: auto } .failed { color: #c0392b; font-weight: 600 } .skipped { color: var(--soft) }
figure { margin: 1rem 0 } figure img { max-width: 100% } .dark { display: none }
@media (prefers-color-scheme: dark) { .dark { display: inline } .light { display: none } }
"""


def figure(measure: Measure) -> str:
    """Return a measured value with its unit."""
    if measure.unit == "s":
        return duration(measure.value)
    if measure.unit in {"tokens", "runs"}:
        return f"{measure.value:,.0f} {measure.unit}"
    if measure.unit.startswith("of the"):
        return f"{100 * measure.value:.1f} % {measure.unit}"
    return f"{measure.value:,.4g} {measure.unit}"


def _sense(measure: Measure) -> str:
    return {"lower": _LOWER, "higher": _HIGHER}.get(measure.better, "")


def _spread(measure: Measure) -> str:
    if len(measure.samples) < 2:
        return ""
    return f"{min(measure.samples):.4g} to {max(measure.samples):.4g} ({len(measure.samples)})"


def facts(record: Record) -> list[tuple[str, str]]:
    """Return what the run was made on and with, for people."""
    machine: dict[str, Any] = record.machine
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    load = " ".join(str(value) for value in machine["load_at_start"])
    return [
        ("started", record.started_at),
        ("size", record.size),
        ("akashic", record.version),
        ("processor", f"{machine['processor']}, {machine['cores']} cores, {size(machine['memory_bytes'])}"),
        ("GPUs", "; ".join(machine["gpus"]) or "none"),
        ("system", f"{machine['system']}, Python {machine['python']}"),
        ("packages", packages),
        ("load when it started", load),
        ("inputs", ", ".join(record.inputs.get("transcripts") or ["made-up runs"])),
        ("command", record.command),
    ]


def _title(suite: SuiteRecord) -> str:
    return suite.suite if suite.target == OURS else f"{suite.suite}: {suite.target}"


def _about(suite: SuiteRecord) -> str:
    known = SUITES.get(suite.suite)
    return known.about if known is not None else ""


def markdown(record: Record) -> str:
    """Return the run as Markdown."""
    lines = [f"# akashic bench, {record.id}", "", "| | |", "| --- | --- |"]
    lines += [f"| {name} | {_cell(value)} |" for name, value in facts(record)]
    for suite in record.suites:
        lines += ["", f"## {_title(suite)}", "", f"{_about(suite)}. Took {duration(suite.seconds)}."]
        if suite.status != DONE:
            lines += ["", f"**{suite.status}**: {suite.reason}"]
        if suite.measures:
            lines += ["", "| figure | value | from - to (samples) | |", "| --- | ---: | --- | --- |"]
            lines += [f"| {_cell(m.name)} | {figure(m)} | {_spread(m)} | {_sense(m)} |" for m in suite.measures]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def html(record: Record, pictures: dict[str, Picture], why_none: str = "") -> str:
    """Return the run as one HTML page. pictures: by suite; why_none: said in their place."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>akashic bench {escape(record.id)}</title><style>{_STYLE}</style></head><body>",
        f'<h1>akashic bench</h1><p>{escape(record.id)}, {escape(record.status)}</p><div class="wide"><table>',
        *(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in facts(record)),
        "</table></div>",
    ]
    if why_none:
        parts.append(f"<p>{escape(why_none)}</p>")
    for suite in record.suites:
        parts += _section(suite)
        picture = pictures.get(suite.suite)
        if picture is not None and suite.target == OURS:
            parts.append(_figure(picture, suite.suite))
    return "\n".join([*parts, "</body></html>", ""])


def _section(suite: SuiteRecord) -> list[str]:
    parts = [f"<h2>{escape(_title(suite))}</h2>", f"<p>{escape(_about(suite))}. Took {duration(suite.seconds)}.</p>"]
    if suite.status != DONE:
        parts.append(f'<p class="{escape(suite.status)}">{escape(suite.status)}: {escape(suite.reason)}</p>')
    if not suite.measures:
        return parts
    parts.append(
        '<div class="wide"><table><tr><th>figure</th><th class="number">value</th><th>from - to (samples)</th><th></th></tr>'
    )
    parts += [
        f'<tr><td>{escape(m.name)}</td><td class="number">{escape(figure(m))}</td><td>{escape(_spread(m))}</td>'
        f'<td class="soft">{_sense(m)}</td></tr>'
        for m in suite.measures
    ]
    return [*parts, "</table></div>"]


def _figure(picture: Picture, name: str) -> str:
    images = "".join(
        f'<img class="{kind}" alt="{escape(name)}: {escape(picture.caption)}" src="data:image/png;base64,{data}">'
        for kind, data in (("light", picture.light), ("dark", picture.dark))
    )
    return f"<figure>{images}<figcaption class='soft'>{escape(picture.caption)}</figcaption></figure>"
