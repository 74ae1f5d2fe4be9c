"""The views of the board as lines. Each fits the window: what has no room is left out, the most telling first."""

from __future__ import annotations

from collections.abc import Callable

from rich.text import Text

from akashic_cli.dashboard.board import KEYS, VIEWS, Board
from akashic_cli.dashboard.lines import beside, cut, fields, spark, table
from akashic_cli.render import tiers
from akashic_cli.render.units import ago, count, duration, rate, size
from akashic_daemon.protocol.native import Stats

WIDE_CELLS = 120
_FOOT = "1-5 views  enter opens  space holds  ? keys  q leaves"
_FRAME_LINES = 3


def draw(board: Board, width_cells: int, height_lines: int) -> list[Text]:
    """Return all lines of the window."""
    room = max(1, height_lines - _FRAME_LINES)
    body = _help(width_cells) if board.shows_help else _VIEWS[board.view](board, width_cells, room)
    head = [_tabs(board, width_cells), _state(board, width_cells)]
    lines = [*head, *body[:room]]
    lines += [Text()] * (height_lines - 1 - len(lines))
    return [*lines, Text(cut(_FOOT, width_cells), style="dim")][:height_lines]


def _tabs(board: Board, width_cells: int) -> Text:
    line = Text()
    for number, view in enumerate(VIEWS, 1):
        line.append(f" {number} {view} ", style="reverse" if view == board.view else "dim")
    line.truncate(width_cells)
    return line


def _state(board: Board, width_cells: int) -> Text:
    now = board.now
    held = "held  " if board.is_held else ""
    engine = now.engine
    text = f"{held}{engine.model or '-'} ({engine.state}), up {duration(now.uptime_s)}, {size(now.resident_bytes)} resident"
    problem = board.trouble or next(iter(now.tiers.problems), "")
    if problem:
        return Text(cut(f"{problem}; {text}", width_cells), style="bold red")
    return Text(cut(text, width_cells), style="bold" if board.is_held else "dim")


def _help(width_cells: int) -> list[Text]:
    return fields(KEYS, width_cells)


def _overview(board: Board, width_cells: int, room: int) -> list[Text]:
    is_wide = width_cells >= WIDE_CELLS
    left_cells = width_cells // 2 if is_wide else width_cells
    left = fields(_counters(board, left_cells), left_cells)
    right_cells = width_cells - left_cells - 2 if is_wide else width_cells
    requests = _requests(board.now, right_cells)
    if is_wide:
        return beside(left, [*_curves(board, right_cells), Text(), *requests], left_cells)
    return [*left[: max(1, room - len(requests) - 1)], Text(), *requests]


def _counters(board: Board, width_cells: int) -> list[tuple[str, str]]:
    now = board.now
    engine = now.engine
    width = min(30, max(8, width_cells - 46))
    limit = f" of {engine.running_limit}" if engine.running_limit else ""
    running = len(now.activity) - now.queued
    return [
        ("decode", f"{rate(now.decode_tokens_per_s):>14}  {_line(board, lambda s: s.decode_tokens_per_s, width)}"),
        ("prefill", f"{rate(now.prefill_tokens_per_s):>14}  {_line(board, lambda s: s.prefill_tokens_per_s, width)}"),
        ("batch", f"{f'{running}{limit} run':>14}  {_line(board, lambda s: len(s.activity) - s.queued, width)}"),
        ("queue", f"{f'{now.queued} wait':>14}  {_line(board, lambda s: s.queued, width)}"),
        ("first token", f"p50 {duration(now.first_token_p50_s)}, p95 {duration(now.first_token_p95_s)}"),
        ("inter-token", f"p50 {duration(now.inter_token_p50_s)}, p95 {duration(now.inter_token_p95_s)}"),
        (
            "requests",
            f"{count(now.requests_total)}, {now.requests_failed_total} failed, {now.requests_cancelled_total} cancelled",
        ),
        ("prompts", f"{count(now.prompt_tokens_total)} tokens: {_share(now.reused_tokens_total, now)} reused"),
        ("misses", _causes(now)),
        ("saved", _saved(now)),
        ("kv cells", f"{count(engine.kv_cells_used)} of {count(engine.kv_cells_total)}"),
        ("sequences", f"{engine.sequences_used} of {engine.sequences_total}"),
        ("tiers", tiers.one_line(now.tiers)),
    ]


def _line(board: Board, read: Callable[[Stats], float], width_cells: int) -> str:
    return spark(board.series(read), width_cells)


def _curves(board: Board, width_cells: int) -> list[Text]:
    """Return what moves between the tiers, over time."""
    moves = (
        ("out of the engine", lambda s: s.tiers.moves.demoted.bytes),
        ("back from RAM", lambda s: s.tiers.moves.promoted_from_ram.bytes),
        ("back from SSD", lambda s: s.tiers.moves.promoted_from_ssd.bytes),
        ("written to SSD", lambda s: s.tiers.wear.written_bytes),
    )
    return fields([(name, _moved(board, read, width_cells - 34)) for name, read in moves], width_cells)


def _moved(board: Board, read: Callable[[Stats], float], width_cells: int) -> str:
    speeds = board.rates(read)
    return f"{size(speeds[-1] if speeds else 0)}/s".rjust(12) + "  " + spark(speeds, max(4, width_cells))


def _requests(now: Stats, width_cells: int) -> list[Text]:
    if not now.activity:
        return [Text("no request runs", style="dim")]
    rows = [
        (
            item.session or item.request, item.state, count(item.prompt_tokens), count(item.reused_tokens),
            count(item.prefilled_tokens), count(item.generated_tokens), duration(item.age_s),
        )
        for item in now.activity
    ]  # fmt: skip
    return table(("SESSION", "STATE", "PROMPT", "REUSED", "READ", "WRITTEN", "AGE"), rows, width_cells)


def _sessions(board: Board, width_cells: int, room: int) -> list[Text]:
    if board.opened is not None:
        return _opened(board, width_cells)
    if not board.sessions:
        return [Text("no session yet", style="dim")]
    states = {item.session: item.state for item in board.now.activity}
    rows = [
        (s.session, states.get(s.session, "-"), count(s.messages), count(s.tokens), ago(s.updated_at_s), s.title)
        for s in board.sessions
    ]
    chosen = min(board.selected, len(rows) - 1)
    first = max(0, min(chosen - (room - 2) // 2, len(rows) - (room - 1)))
    shown = rows[first : first + max(1, room - 1)]
    columns = ("SESSION", "STATE", "MESSAGES", "TOKENS", "LAST", "TITLE")
    return table(columns, shown, width_cells, chosen=chosen - first)


def _opened(board: Board, width_cells: int) -> list[Text]:
    """Return why the chosen session's last turn reused what it did."""
    found = board.explanation
    running = next((a for a in board.now.activity if a.session == board.opened), None)
    pairs = [("session", board.opened or "")]
    if running is not None:
        pairs.append(("now", f"{running.state}, {count(running.generated_tokens)} tokens written"))
    if found is None:
        return fields([*pairs, ("last turn", "none is known")], width_cells)
    pairs += [
        ("last turn", f"{found.turn}, {ago(found.at_s)}, {found.model}, as {found.plan}"),
        ("prompt", f"{count(found.prompt_tokens)} tokens"),
        ("reused", f"{count(found.reused_tokens)} tokens"),
        ("computed", f"{count(found.computed_tokens)} tokens"),
        ("dropped", f"{count(found.dropped_tokens)} tokens, {count(found.reposed_tokens)} moved by Repos"),
    ]
    if found.miss is not None:
        pairs.append(("miss", f"{found.miss.cause} at token {count(found.miss.at_token)}"))
    pairs += [("note", note) for note in found.notes]
    return fields(pairs, width_cells)


def _tiers(board: Board, width_cells: int, _room: int) -> list[Text]:
    report = board.now.tiers
    bar_cells = max(8, min(40, width_cells - 44))
    pairs = []
    for tier in report.tiers:
        used = f"{size(tier.used_bytes)} of {size(tier.budget_bytes)}" if tier.is_on else "off"
        pairs.append((tier.tier, f"{tiers.bar(tier, bar_cells)}  {used}" if tier.is_on else used))
    return [
        *fields(pairs, width_cells),
        Text(),
        *_curves(board, width_cells),
        Text(),
        *fields(tiers.fields(report), width_cells),
    ]


def _cache(board: Board, width_cells: int, _room: int) -> list[Text]:
    now = board.now
    by_tier = ", ".join(f"{tier} {count(tokens)}" for tier, tokens in sorted(now.reused_by_tier.items())) or "none"
    pairs = [
        ("prompts", f"{count(now.prompt_tokens_total)} tokens"),
        ("reused", f"{count(now.reused_tokens_total)} tokens, {_share(now.reused_tokens_total, now)}: {by_tier}"),
        ("computed", f"{count(now.computed_tokens_total)} tokens, {_share(now.computed_tokens_total, now)}"),
        ("saved", _saved(now)),
        ("evicted", f"{count(now.evicted_tokens_total)} tokens, {now.preempted_total} requests preempted"),
        ("reuse", spark(_reuse(board), max(8, width_cells - 12))),
    ]
    total = sum(now.miss_causes.values())
    causes = sorted(now.miss_causes.items(), key=lambda entry: (-entry[1], entry[0]))
    bar_cells = max(4, min(40, width_cells - 44))
    misses = [(cause, count(number), "█" * max(1, round(number / total * bar_cells))) for cause, number in causes]
    found = table(("MISS", "TIMES", ""), misses, width_cells) if misses else [Text("no miss yet", style="dim")]
    return [*fields(pairs, width_cells), Text(), *found]


def _reuse(board: Board) -> list[float]:
    reused = board.rates(lambda s: s.reused_tokens_total)
    computed = board.rates(lambda s: s.computed_tokens_total)
    return [a / (a + b) if a + b else 0.0 for a, b in zip(reused, computed, strict=True)]


def _memory(board: Board, width_cells: int, _room: int) -> list[Text]:
    found = board.memory
    if found is None:
        return [Text("asking", style="dim")]
    pairs = [
        ("database", f"{size(found.database_bytes)}, {size(found.extent_bytes)} in extents"),
        ("index", f"{size(found.index_bytes)} of RAM"),
        ("written", f"{found.write_amplification:.2f} bytes a stored one"),
        ("compactor", f"{found.compactor or '-'}, {count(found.model_tokens)} tokens of a model"),
        *(("problem", problem) for problem in found.problems),
    ]
    rows = [
        (
            n.namespace,
            count(n.turns),
            count(n.length_tokens),
            count(n.chunks),
            count(n.waiting_chunks),
            count(n.records),
        )
        for n in found.namespaces
    ]
    columns = ("NAMESPACE", "TURNS", "TOKENS", "CHUNKS", "WAITING", "RECORDS")
    below = table(columns, rows, width_cells) if rows else [Text("nothing is remembered yet", style="dim")]
    return [*fields(pairs, width_cells), Text(), *below]


def _share(tokens: int, now: Stats) -> str:
    return f"{tokens / now.prompt_tokens_total:.1%}" if now.prompt_tokens_total else "-"


def _causes(now: Stats) -> str:
    causes = sorted(now.miss_causes.items(), key=lambda entry: (-entry[1], entry[0]))
    return ", ".join(f"{cause} {number}" for cause, number in causes) or "none"


def _saved(now: Stats) -> str:
    return f"Drop {count(now.dropped_tokens_total)} tokens not read, Repos {count(now.reposed_tokens_total)} moved"


_VIEWS: dict[str, Callable[[Board, int, int], list[Text]]] = dict(
    zip(VIEWS, (_overview, _sessions, _tiers, _cache, _memory), strict=True)
)
