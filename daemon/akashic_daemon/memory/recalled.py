"""The marks around text that memory puts into a conversation, by which it is known when it comes back.

Clients send recalled text back as history, models quote it, transcripts hold it. It was stored when it was said; stored
again it would be found instead of what was said, as if it were new.
"""

from __future__ import annotations

import re

OPENING = "<akashic-memory>"
CLOSING = "</akashic-memory>"

_MARKED = re.compile(
    re.escape(OPENING) + r"(?:(?!" + re.escape(OPENING) + r").)*?" + re.escape(CLOSING) + r"\n?", re.DOTALL
)


def marked(text: str) -> str:
    """Return text between marks; marks inside it are written otherwise, so that it ends where it ends."""
    plain = text.replace(OPENING, "<akashic memory>").replace(CLOSING, "</akashic memory>")
    return f"{OPENING}\n{plain}\n{CLOSING}"


def without_recalled(text: str) -> str:
    """Return the text without what stands between marks. A mark without its pair is text like any other."""
    return _MARKED.sub("", text) if CLOSING in text else text
