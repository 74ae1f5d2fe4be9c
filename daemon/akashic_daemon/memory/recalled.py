"""The marks around text that memory puts into a conversation, by which it is known when it comes back.

Clients send recalled text back as history, models quote it, transcripts hold it. It was stored when it was said; stored
again it would be found instead of what was said, as if it were new.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime

OPENING = "<akashic-memory>"
CLOSING = "</akashic-memory>"

# Also as it stands in HTML.
_MARKED = re.compile(
    r"(?:<|&lt;)akashic-memory(?:>|&gt;)(?:(?!(?:<|&lt;)akashic-memory(?:>|&gt;)).)*?(?:<|&lt;)/akashic-memory(?:>|&gt;)\n?",
    re.DOTALL,
)
_CLOSED = "/akashic-memory"
_TOLD = re.compile(r"[ \t>]*- (?:\d{4}-\d\d-\d\d )?(?P<speaker>[^:\n]{1,200}): (?P<text>[^\n]+)(?:\n|\Z)")


def marked(text: str) -> str:
    """Return text between marks; marks inside it are written otherwise, so that it ends where it ends."""
    plain = text.replace(OPENING, "<akashic memory>").replace(CLOSING, "</akashic memory>")
    return f"{OPENING}\n{plain}\n{CLOSING}"


def without_recalled(text: str) -> str:
    """Return the text without what stands between marks. A mark without its pair is text like any other."""
    return _MARKED.sub("", text) if _CLOSED in text else text


def told(at_s: float | None, speaker: str, text: str) -> str:
    """Return the line in which a turn is recalled."""
    date = day(at_s)
    return f"- {date} {speaker}: {text}" if date else f"- {speaker}: {text}"


def day(at_s: float | None) -> str:
    """Return UTC's day; nothing when it isn't known, or is none of a calendar's: logs have any number as a time."""
    try:
        return "" if at_s is None else datetime.fromtimestamp(at_s, UTC).date().isoformat()
    except (ValueError, OverflowError, OSError):
        return ""


def without_told(text: str, is_known: Callable[[str, str], bool]) -> str:
    """Return the text without lines in which turns are recalled, where marks were lost: quoted, cut off, copied.

    is_known: whether a speaker said just that. Only whole lines of such a turn are taken for a recalled one.
    """
    if "- " not in text:
        return text
    kept: list[str] = []
    for line in text.splitlines(keepends=True):
        found = _TOLD.fullmatch(line)
        if found is None or not is_known(found["speaker"], found["text"]):
            kept.append(line)
    return "".join(kept)
