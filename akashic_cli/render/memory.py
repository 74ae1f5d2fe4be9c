"""Memory as people read it: lists and maps of chunks, a card, a history, what was found and what is forgotten."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from itertools import groupby

from akashic_cli.render.output import print_fields, print_table, printable, say
from akashic_cli.render.units import ago, count, size
from akashic_daemon.protocol.memory import (
    ChunkCard,
    ChunkSummary,
    Forgotten,
    History,
    MemoryStats,
    RecordView,
    RelationView,
    SearchResult,
    TurnView,
    Version,
)

_ID = re.compile(r"([tcr])[1-9][0-9]*")
_SHOWN_CHARS = 200
_SHOWN_TURNS = 20
_PARTS_SHOWN = 0.01


def kind_of(name: str | None) -> str | None:
    """Return what an id names: c, t or r; None for another name."""
    match = _ID.fullmatch(name or "")
    return match[1] if match else None


def print_chunks(chunks: Sequence[ChunkSummary]) -> None:
    """Print a table of chunks."""
    rows = [
        (
            c.id,
            c.namespace,
            c.state,
            count(c.length_tokens),
            _share(c.estimated_rho),
            ago(c.created_at_s),
            c.place or "-",
        )
        for c in chunks
    ]
    print_table(("CHUNK", "NAMESPACE", "STATE", "TOKENS", "RHO", "BEGUN", "PLACE"), rows, right=(3, 4))


def print_map(chunks: Sequence[ChunkSummary]) -> None:
    """Print where chunks lie: a line an extent, its chunks in their order."""
    placed = [(chunk.place or "the database", chunk) for chunk in chunks]
    for place, group in groupby(sorted(placed, key=lambda pair: pair[0]), key=lambda pair: pair[0]):
        inside = [chunk for _, chunk in group]
        tokens = sum(chunk.length_tokens for chunk in inside)
        print(f"{place}: {count(len(inside))} chunks, {count(tokens)} tokens")
        for namespace, own in groupby(inside, key=lambda chunk: chunk.namespace):
            print(f"  {printable(namespace)}: {' '.join(chunk.id for chunk in own)}")


def say_empty(*, session: str | None, is_narrowed: bool) -> None:
    """Say why a list is empty, and what fills it."""
    if session is not None:
        say(
            f"memory holds nothing of {printable(session)}; `akashic import --memory` and chats with --memory put it there"
        )
    elif is_narrowed:
        say("memory holds nothing like that; `akashic mem inspect` lists all chunks, `mem stats` all namespaces")
    else:
        say("memory is empty; `akashic mem add`, `mem watch`, `import --memory` and chats with --memory fill it")


def say_nothing_found(found: SearchResult, stats: MemoryStats) -> None:
    """Say why a search found nothing."""
    held = [one for one in stats.namespaces if one.turns]
    there = ", ".join(f"{one.namespace} ({count(one.turns)} turns)" for one in held)
    if not held:
        say_empty(session=None, is_narrowed=False)
    elif found.unknown_namespaces:
        say(f"memory has no {', '.join(found.unknown_namespaces)}; it has {there}")
    else:
        say(f"nothing in memory fits; it holds {there}")


def print_card(card: ChunkCard) -> None:
    """Print all that is known of a chunk."""
    chunk = card.chunk
    sources = list(dict.fromkeys(turn.source for turn in card.turns))
    fields = [
        ("chunk", chunk.id),
        ("namespace", chunk.namespace),
        ("state", chunk.state),
        ("length", f"{count(chunk.length_tokens)} tokens in {count(len(card.turns))} turns"),
        ("rho", f"{_share(chunk.estimated_rho)} estimated, {_share(_newest_rho(card.versions))} actual"),
        ("begun", ago(chunk.created_at_s)),
        ("sealed", "-" if chunk.sealed_at_s is None else ago(chunk.sealed_at_s)),
        ("sources", ", ".join(sources) or "-"),
        ("place", chunk.place or "the database"),
        ("neighbours", " ".join(card.neighbours) or "-"),
        ("kv", "none of its own: what is recalled of it is computed in the session that recalls it"),
        ("links", " ".join(f"{link.chunk} ({link.weight:.2f})" for link in card.links) or "-"),
    ]
    print_fields(fields)
    _print_turns(card.turns)
    _print_versions(card.versions)
    _print_records(card.records)


def print_history(found: History) -> None:
    """Print where something comes from."""
    for turn in found.turns[:_SHOWN_TURNS]:
        print(f"{turn.id} {when(turn.event_at_s)} {printable(turn.speaker)}: {_short(turn.text)}")
        for origin in turn.origins:
            print(f"    said in {printable(origin.source)} ({when(origin.event_at_s)}), {printable(origin.reference)}")
    if len(found.turns) > _SHOWN_TURNS:
        print(f"… and {count(len(found.turns) - _SHOWN_TURNS)} more turns")
    _print_versions(found.versions)
    _print_records(found.records)
    _print_relations(found.relations)


def print_found(found: Sequence[TurnView], *, explain: bool) -> None:
    """Print what a search found."""
    for turn in found:
        score = 0.0 if turn.score is None else turn.score
        print(f"{turn.id}  {score:6.2f}  {when(turn.event_at_s)}  {printable(turn.source)}  {turn.namespace}")
        print(f"    {printable(turn.speaker)}: {_short(turn.text)}")
        if explain:
            parts = sorted(turn.parts.items(), key=lambda part: -abs(part[1]))
            told = ", ".join(f"{name} {value:+.2f}" for name, value in parts if abs(value) >= _PARTS_SHOWN)
            print(f"    because: {told or 'nothing of it stands out'}")


def print_forgotten(done: Forgotten) -> None:
    """Print what went, or would go."""
    for turn in done.turns:
        print(f"{turn.id}  {when(turn.event_at_s)}  {printable(turn.speaker)}: {_short(turn.text)}")
    if not done.turns:
        say("nothing in memory is like that, so nothing is forgotten; `akashic mem search` shows turns with their ids")
        return
    would = "would go" if done.dry_run else "forgotten"
    parts = [f"{count(len(done.turns))} turns"]
    if done.records:
        parts.append(f"{count(len(done.records))} statements that rest on them")
    if done.chunks_removed:
        parts.append(f"{count(len(done.chunks_removed))} whole chunks")
    if done.chunks_changed:
        parts.append(f"the compacted text of {count(len(done.chunks_changed))} chunks, which is made anew without them")
    say(f"{would}: {', '.join(parts)}")
    if done.sessions:
        names = ", ".join(done.sessions[:5]) + (", …" if len(done.sessions) > 5 else "")
        say(f"the sessions they come from still hold their messages: {names}; `akashic session rm` removes those")
    if done.dry_run:
        say("nothing was forgotten; --yes does it")


def print_stats(stats: MemoryStats) -> None:
    """Print what memory holds."""
    rows = [
        (
            one.namespace,
            count(one.turns),
            count(one.length_tokens),
            count(one.chunks),
            count(one.waiting_chunks),
            count(one.records),
            _share(one.estimated_rho),
            _share(one.actual_rho),
        )
        for one in stats.namespaces
    ]
    columns = ("NAMESPACE", "TURNS", "TOKENS", "CHUNKS", "WAITING", "STATEMENTS", "RHO EST.", "RHO")
    if rows:
        print_table(columns, rows, right=range(1, 8))
    else:
        say_empty(session=None, is_narrowed=False)
    compactor = f"; compacted by {stats.compactor}" if stats.compactor else ""
    tokens = f", {count(stats.model_tokens)} tokens of a model" if stats.model_tokens else ""
    say(f"{size(stats.database_bytes)} on disk, {size(stats.index_bytes)} of indexes in RAM{compactor}{tokens}")
    if stats.extent_bytes:
        say(f"{size(stats.extent_bytes)} of chunks in extents, written {stats.write_amplification:.2f} times")
    for problem in stats.problems:
        say(f"warning: {problem}")


def _print_turns(turns: Sequence[TurnView]) -> None:
    print("\nturns")
    for turn in turns:
        said = f"  {turn.id} {when(turn.event_at_s)} {printable(turn.source)}, {printable(turn.speaker)}:"
        print(f"{said} {_indented(turn.text)}")


def _print_versions(versions: Iterable[Version]) -> None:
    for version in versions:
        print(
            f"\nversion {version.version} by {printable(version.made_by)}, rho {version.rho:.2f}, {ago(version.made_at_s)}"
        )
        print(f"  {_indented(version.text)}")


def _print_records(records: Sequence[RecordView]) -> None:
    if records:
        print("\nstatements")
    for record in records:
        mark = "" if record.is_current else " (superseded)"
        print(f"  {record.id} {when(record.event_at_s)} {_indented(record.text)}{mark}  [{' '.join(record.turns)}]")


def _print_relations(relations: Sequence[RelationView]) -> None:
    if relations:
        print("\nhow they stand")
    for relation in relations:
        reason = f": {printable(relation.reason)}" if relation.reason else ""
        print(f"  {relation.record} {relation.relation} {relation.other}{reason}")


def _newest_rho(versions: Sequence[Version]) -> float | None:
    return versions[-1].rho if versions else None


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def when(at_s: float | None) -> str:
    """Return a time as a clock here shows it: of what was said, whatever number its record has for a time."""
    if at_s is None:
        return "undated"
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(at_s))
    except (OverflowError, OSError, ValueError):
        return "undated"


def _short(text: str) -> str:
    line = " ".join(printable(text).split())
    return line if len(line) <= _SHOWN_CHARS else line[: _SHOWN_CHARS - 1] + "…"


def _indented(text: str) -> str:
    return printable(text.replace("\r\n", "\n")).replace("\n", "\n      ")
