"""A run for people: Markdown, or one HTML file with its plots inside, readable in light and dark.

A suite is one section, with a column for each server that was measured.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import Any

from akashic_cli.bench.peers import OURS
from akashic_cli.bench.pictures import Picture
from akashic_cli.bench.record import DONE, Measure, Record, SuiteRecord
from akashic_cli.bench.report_words import GLOSSARY, HOW_TO_READ, INTRODUCTION
from akashic_cli.bench.suites import SUITES
from akashic_cli.render.units import duration, size

_LOWER, _HIGHER = "less is better", "more is better"
_STYLE = """
:root { color-scheme: light dark; --ink: #1c2024; --soft: #5c6670; --line: #d5dae0; --paper: #fff; --band: #f4f6f8; --mark: #0b63c5 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ec; --soft: #9aa4ae; --line: #343b43; --paper: #14171a; --band: #1c2126; --mark: #6cb2ff } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem; margin-bottom: 0 } h2 { font-size: 1.2rem; margin: 2.2rem 0 .3rem; border-bottom: 1px solid var(--line) }
.soft { color: var(--soft) } code { background: var(--band); padding: .1rem .3rem; border-radius: 3px; overflow-wrap: anywhere }
a { color: var(--mark) } nav { margin: .8rem 0 } nav a { margin-right: 1rem } dt { font-weight: 600 } dd { margin: 0 0 .4rem 1rem; color: var(--soft) }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums } th { text-align: left; color: var(--soft); font-weight: 600 }
td, th { padding: .25rem .6rem; border-bottom: 1px solid var(--line) } .number { text-align: right; white-space: nowrap }
.wide { overflow-x: auto } .failed, .interrupted { color: #c0392b; font-weight: 600 } .skipped { color: var(--soft) }
.warning { border-left: 4px solid #d08a00; background: var(--band); padding: .4rem .8rem }
figure { margin: 1rem 0 } figure img { max-width: 100% } .dark { display: none }
@media (prefers-color-scheme: dark) { .dark { display: inline } .light { display: none } .failed, .interrupted { color: #ff7b6b } }
"""


def figure(measure: Measure) -> str:
    """Return a measured value with its unit."""
    return _with_unit(measure.value, measure.unit)


def _with_unit(value: float, unit: str) -> str:
    if unit == "s":
        return duration(value)
    if unit in {"tokens", "runs"}:
        return f"{value:,.0f} {unit}"
    if unit.startswith("nats"):
        return f"{value:.4f} {unit}"
    if unit == "x":
        return f"{value:.2f} x"
    if unit.startswith("of the"):
        return f"{100 * value:.1f} % {unit}"
    return f"{value:,.0f} {unit}" if abs(value) >= 1000 else f"{value:,.4g} {unit}"


def _sense(measure: Measure) -> str:
    sense = {"lower": _LOWER, "higher": _HIGHER}.get(measure.better, "")
    if measure.goal is None:
        return sense
    return f"{sense}; goal {_with_unit(measure.goal, measure.unit)}: {'met' if measure.meets_goal else 'not met'}"


def _spread(measure: Measure) -> str:
    if len(measure.samples) < 2:
        return ""
    ends = (_with_unit(end, measure.unit) for end in (min(measure.samples), max(measure.samples)))
    return f"{' to '.join(ends)} ({len(measure.samples)})"


def facts(record: Record) -> list[tuple[str, str]]:
    """Return what the run was made on and with, for people."""
    machine: dict[str, Any] = record.machine
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    load = " ".join(str(value) for value in machine["load_at_start"])
    peers: dict[str, str] = record.inputs.get("peers") or {}
    return [
        ("started", record.started_at),
        ("size", record.size),
        ("akashic", record.version),
        ("model", str(record.inputs.get("model") or "the one that comes with akashic")),
        ("beside it", ", ".join(f"{name} ({where})" for name, where in peers.items()) or "no other server"),
        ("processor", f"{machine['processor']}, {machine['cores']} cores, {size(machine['memory_bytes'])}"),
        ("GPUs", "; ".join(machine["gpus"]) or "none"),
        ("system", f"{machine['system']}, Python {machine['python']}"),
        ("packages", packages),
        ("load when it started", load),
        ("agents' runs", ", ".join(record.inputs.get("transcripts") or ["made-up runs"])),
        ("command", record.command),
    ]


def warnings(record: Record) -> list[str]:
    """Return what a reader must know before believing the figures."""
    said = []
    load = record.machine["load_at_start"]
    # Half a core of others' work is already seen in times.
    if load and load[0] > 0.5 * record.machine["cores"]:
        said.append(
            f"The machine was busy when this began (load {load[0]:g}, cores {record.machine['cores']}): "
            "times are too long; counts of tokens hold."
        )
    if record.status != DONE:
        said.append(f"This run is {record.status}: what is missing was not measured.")
    return said


def _groups(record: Record) -> list[tuple[str, list[SuiteRecord]]]:
    """Return each suite with its records, ours first."""
    names = dict.fromkeys(suite.suite for suite in record.suites)
    return [(name, [suite for suite in record.suites if suite.suite == name]) for name in names]


def _about(name: str) -> str:
    known = SUITES.get(name)
    return known.about if known is not None else ""


def _took(group: Sequence[SuiteRecord]) -> str:
    return ", ".join(f"{suite.target} {duration(suite.seconds)}" for suite in group)


def _rows(group: Sequence[SuiteRecord]) -> list[tuple[Measure, list[str]]]:
    """Return each figure, in the first server's words, and its value of each server."""
    by_target = [{measure.name: measure for measure in suite.measures} for suite in group]
    names = dict.fromkeys(name for measures in by_target for name in measures)
    rows = []
    for name in names:
        first = next(measures[name] for measures in by_target if name in measures)
        rows.append((first, [figure(measures[name]) if name in measures else "-" for measures in by_target]))
    return rows


def _title(suite: SuiteRecord) -> str:
    return suite.suite if suite.target == OURS else f"{suite.suite} of {suite.target}"


def markdown(record: Record) -> str:
    """Return the run as Markdown."""
    lines = [f"# akashic bench, {record.id}", "", INTRODUCTION]
    lines += [f"\n**{said}**" for said in warnings(record)]
    lines += ["", "| | |", "| --- | --- |"]
    lines += [f"| {name} | {_cell(value)} |" for name, value in facts(record)]
    for name, group in _groups(record):
        lines += [
            "",
            f"## {name}",
            "",
            f"{_capital(_about(name))}. Took: {_took(group)}. {HOW_TO_READ.get(name, '')}".rstrip(),
        ]
        lines += [f"\n**{_title(suite)} {suite.status}**: {suite.reason}" for suite in group if suite.status != DONE]
        rows = _rows(group)
        if rows:
            targets = " | ".join(_cell(suite.target) for suite in group)
            lines += [
                "",
                f"| figure | {targets} | from - to (samples) | which way, goal |",
                f"| --- |{' ---: |' * len(group)} --- | --- |",
            ]
            lines += [f"| {_cell(m.name)} | {' | '.join(values)} | {_spread(m)} | {_sense(m)} |" for m, values in rows]
    lines += ["", "## Words", "", *(f"- **{word}**: {meaning}" for word, meaning in GLOSSARY)]
    return "\n".join(lines) + "\n"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def html(record: Record, pictures: dict[str, Picture], why_none: str = "") -> str:
    """Return the run as one HTML page. pictures: by suite; why_none: said in their place."""
    groups = _groups(record)
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>akashic bench {escape(record.id)}</title><style>{_STYLE}</style></head><body>",
        f'<h1>akashic bench</h1><p class="soft">{escape(record.id)}, {escape(record.status)}</p>',
        f"<p>{escape(INTRODUCTION)}</p>",
        *(f'<p class="warning">{escape(said)}</p>' for said in warnings(record)),
        "<nav>" + "".join(f'<a href="#{escape(name)}">{escape(name)}</a>' for name, _ in groups),
        '<a href="#words">what the words mean</a></nav><div class="wide"><table>',
        *(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in facts(record)),
        "</table></div>",
    ]
    if why_none:
        parts.append(f"<p>{escape(why_none)}</p>")
    for name, group in groups:
        parts += _section(name, group)
        if name in pictures:
            parts.append(_figure(pictures[name], name))
    parts.append('<h2 id="words">What the words mean</h2><dl>')
    parts += [f"<dt>{escape(word)}</dt><dd>{escape(meaning)}</dd>" for word, meaning in GLOSSARY]
    return "\n".join([*parts, "</dl></body></html>", ""])


def _section(name: str, group: Sequence[SuiteRecord]) -> list[str]:
    parts = [
        f'<h2 id="{escape(name)}">{escape(name)}: {escape(_about(name))}</h2>',
        f"<p>{_prose(HOW_TO_READ.get(name, ''))}</p>",
        f'<p class="soft">Took: {escape(_took(group))}.</p>',
    ]
    for suite in group:
        if suite.status != DONE:
            why = f"{_title(suite)} {suite.status}: {suite.reason}"
            parts.append(f'<p class="{escape(suite.status)}">{escape(why)}</p>')
    rows = _rows(group)
    if not rows:
        return parts
    targets = "".join(f'<th class="number">{escape(suite.target)}</th>' for suite in group)
    parts.append(
        f'<div class="wide"><table><tr><th>figure</th>{targets}<th>from - to (samples)</th><th>which way, goal</th></tr>'
    )
    for measure, values in rows:
        cells = "".join(f'<td class="number">{escape(value)}</td>' for value in values)
        ends = f'<td class="soft">{escape(_spread(measure))}</td><td class="soft">{_sense(measure)}</td>'
        parts.append(f"<tr><td>{escape(measure.name)}</td>{cells}{ends}</tr>")
    return [*parts, "</table></div>"]


def _prose(text: str) -> str:
    """Return text for a page, what stands between backticks as code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))


def _figure(picture: Picture, name: str) -> str:
    images = "".join(
        f'<img class="{kind}" alt="{escape(name)}: {escape(picture.caption)}" src="data:image/png;base64,{data}">'
        for kind, data in (("light", picture.light), ("dark", picture.dark))
    )
    return f"<figure>{images}<figcaption class='soft'>{escape(picture.caption)}</figcaption></figure>"
