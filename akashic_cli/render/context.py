"""A session's active cache on a terminal: its positions as a strip, its messages as a table, its operations as lines."""

from __future__ import annotations

from akashic_cli.render.output import print_table, printable
from akashic_cli.render.units import count
from akashic_daemon.protocol.context import ContextMessage, ContextOp, ContextView

STRIP_CELLS = 64
FULL, PART, FREE = "█", "▒", "·"


def print_context(view: ContextView) -> None:
    """Draw it on stdout."""
    whose = "its own" if view.own_policy else "of the settings"
    print(printable(f"session {view.session} on {view.model}, policy {view.policy} ({whose})"))
    print(f"0 {strip(view)} {count(view.next_position)}   {FULL} visible  {PART} partly  {FREE} free")
    rows = [
        (str(m.index), m.role, count(m.tokens), _visible(m), _state(m), _positions(m), m.label) for m in view.messages
    ]
    columns = ("#", "ROLE", "TOKENS", "VISIBLE", "STATE", "POSITIONS", "TEXT")
    print_table(columns, rows, right=(0, 2, 3))
    for op in view.ops:
        print(printable(f"before message {op.at}: {_told(op)}"))
    for note in view.notes:
        print(printable(f"note: {note}"))
    print(totals(view))


def totals(view: ContextView) -> str:
    """Return one line of counts."""
    free = view.next_position - view.visible_tokens
    return (
        f"{count(view.visible_tokens)} tokens visible, next position {count(view.next_position)} of "
        f"{count(view.window_tokens)}, {count(free)} free positions, {count(view.dropped_tokens)} tokens dropped"
    )


def strip(view: ContextView) -> str:
    """Return the positions from 0 to the next one as a row of cells."""
    end = view.next_position
    if not end:
        return ""
    cells = min(STRIP_CELLS, end)
    held = [0] * cells
    for message in view.messages:
        for start, stop in message.positions:
            for cell in range(start * cells // end, (stop - 1) * cells // end + 1):
                low, high = -(-cell * end // cells), -(-(cell + 1) * end // cells)
                held[cell] += max(0, min(stop, high) - max(start, low))
    widths = [-(-(c + 1) * end // cells) - -(-c * end // cells) for c in range(cells)]
    return "".join(FULL if have >= width else PART if have else FREE for have, width in zip(held, widths, strict=True))


def _visible(message: ContextMessage) -> str:
    return count(message.visible_tokens) if message.visible_tokens else ""


def _state(message: ContextMessage) -> str:
    first, end = message.group or (message.index, message.index + 1)
    return message.state if end - first == 1 else f"{message.state}, with {first}..{end - 1}"


def _positions(message: ContextMessage) -> str:
    shown = ", ".join(f"{start}..{end - 1}" for start, end in message.positions[:4])
    return shown + (", …" if len(message.positions) > 4 else "")


def _told(op: ContextOp) -> str:
    by = "" if op.by == "session" else " (by the policy)"
    moved = op.op.get("op") == "repos"
    return f"{op.text}: {count(op.tokens)} tokens {'moved' if moved else 'gone'}{by}"
