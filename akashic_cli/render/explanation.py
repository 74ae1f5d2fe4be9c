"""`akashic explain` on a terminal: a bar for each message, totals, and the reason of the first miss in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from akashic_cli.render.bars import cells_of
from akashic_cli.render.output import out, printable
from akashic_cli.render.units import count
from akashic_daemon.protocol.context import ExplainedSegment, Explanation
from akashic_daemon.protocol.native import Miss

if TYPE_CHECKING:
    from rich.text import Text

BAR_CELLS = 32
PARTS = (("reused", "█", "green"), ("moved", "▓", "cyan"), ("dropped", "·", "red"), ("computed", "▁", "yellow"))
"""What may become of a token, its character and its colour."""

PLANS = {
    "plain": "the text as it was sent",
    "program": "with its cache operations",
    "edited": "as edits of what was computed before",
}
CAUSES = {
    "cold": "nothing like it was computed before",
    "text_differs": "its text differs from what was computed",
    "new_session": "no earlier turn shares its start",
    "evicted": "it was computed, and evicted since to make room",
    "tokenization_differs": "the same text was tokenized otherwise",
    "window_moved": "the prompt's start moved, because the history outgrew the window",
    "message_removed": "a message of the history was removed",
    "message_replaced": "a message of the history was replaced",
    "message_inserted": "a message was inserted into the history",
    "volatile_text": "a text that changes with every request has changed",
    "arguments_reserialised": "the same tool arguments were written otherwise",
    "tools_reordered": "the same tools came in another order",
    "program_differs": "other cache operations were in force before",
    "answer_differs": "the history has another answer than the one that was generated",
    "model_changed": "it was computed by another model, or by this one set up otherwise",
}


def print_explanation(explanation: Explanation) -> None:
    """Print it on stdout."""
    console = out()
    for line in lines(explanation):
        # Said again here: the console joins what it prints to a text of its own.
        if line.no_wrap:
            console.print(line, no_wrap=True, overflow=line.overflow)
        else:
            console.print(line, soft_wrap=True)


def lines(explanation: Explanation) -> list[Text]:
    """Return it as lines."""
    from rich.text import Text

    e = explanation
    plan = PLANS.get(e.plan, e.plan)
    shown = [Text(printable(f"turn {e.turn} of session {e.session} on {e.model}: {plan}"))]
    longest = max((s.tokens for s in e.segments), default=0)
    shown += [_segment(s, longest) for s in e.segments]
    shown.append(_legend())
    shown.append(
        Text(
            f"{count(e.prompt_tokens)} prompt tokens: reused {count(e.reused_tokens)}, "
            f"computed {count(e.computed_tokens)}, dropped {count(e.dropped_tokens)}, moved {count(e.reposed_tokens)}"
        )
    )
    shown += [Text(line) for line in miss_lines(e.miss, exact=e.plan == "plain")]
    return [*shown, *(Text(printable(f"note: {note}")) for note in e.notes)]


def miss_lines(miss: Miss | None, *, exact: bool) -> list[str]:
    """Return the reason of the first miss in words. exact: nothing was kept of an edited history."""
    if miss is None:
        return ["nothing that was computed before had to be computed again"]
    where = f"token {count(miss.at_token)}" + (f", message {miss.at_message}" if miss.at_message is not None else "")
    told = [f"first miss at {where}: {CAUSES.get(miss.cause, miss.cause)} ({miss.cause})"]
    for name, text in (("expected", miss.expected), ("got", miss.got)):
        if text is not None:
            told.append(f"  {name}: {quoted(text)}")
    if miss.detail is not None:
        told.append(f"  {printable(miss.detail)}")
    if miss.could_reuse and exact and miss.cause not in ("evicted", "model_changed"):
        told.append(f"  with edit_reuse=drop {count(miss.could_reuse)} tokens would have been reused in all")
    return told


def quoted(text: str) -> str:
    """Return a text in quotes on one line, its ends and tabs as they are written in JSON."""
    import json

    return printable(json.dumps(text, ensure_ascii=False))


def _segment(segment: ExplainedSegment, longest: int) -> Text:
    from rich.text import Text

    number = "" if segment.message is None else str(segment.message)
    line = Text(f"{number:>5} {segment.role:<9} ", no_wrap=True, overflow="ellipsis")
    amounts = [getattr(segment, name) for name, _, _ in PARTS]
    cells = cells_of(amounts, longest, BAR_CELLS)
    for (_, mark, colour), width in zip(PARTS, cells, strict=True):
        line.append(mark * width, style=colour)
    told = " ".join(f"{name} {count(n)}" for (name, _, _), n in zip(PARTS, amounts, strict=True) if n)
    line.append(" " * max(0, BAR_CELLS + len(PARTS) - sum(cells)))
    line.append(printable(f" {told}" + (f"  {segment.label}" if segment.label else "")))
    return line


def _legend() -> Text:
    from rich.text import Text

    line = Text("      ")
    for name, mark, colour in PARTS:
        line.append(mark * 2, style=colour)
        line.append(f" {name}   ")
    line.rstrip()
    return line
