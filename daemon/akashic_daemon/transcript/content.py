"""Reading single values that foreign records hold: text in parts, times, arguments.

Nothing here raises on a wrong type: foreign files hold anything. Text parts of one message are joined with a line
break; a part that isn't text becomes a short marker such as `[image]`.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from akashic_daemon.trajectory.message import Message, ToolCall

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_MARKERS = {
    "image_url": "image",
    "input_image": "image",
    "input_audio": "audio",
    "video_url": "video",
    "input_file": "file",
}
_MILLISECONDS_FROM = 1e11
"""Numbers above this are milliseconds: as seconds they would lie beyond the year 5000."""


def as_dict(value: Any) -> dict[str, Any]:
    """Return `value` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """Return `value` if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def as_text(value: Any) -> str:
    """Return `value` if it is text, else the empty text."""
    return value if isinstance(value, str) else ""


def as_key(value: Any) -> str | None:
    """Return text or a whole number as an id, else None."""
    if isinstance(value, str):
        return value or None
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def compact_json(value: Any) -> str:
    """Write arguments that the source holds as a value, not as text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def arguments_text(value: Any) -> str:
    """Return a call's arguments: text byte for byte, anything else as compact JSON; nothing is `{}`."""
    if isinstance(value, str):
        return value
    return "{}" if value is None else compact_json(value)


def marker(part: Any) -> str:
    """Return the short text that stands for a part that isn't text."""
    kind = as_text(as_dict(part).get("type")) or "part"
    return f"[{_MARKERS.get(kind, kind)}]"


def part_text(part: Any) -> str:
    """Return one content part as text, or its marker."""
    if isinstance(part, str):
        return part
    for key in ("text", "refusal"):
        text = as_dict(part).get(key)
        if isinstance(text, str):
            return text
    return marker(part)


def joined(parts: list[str]) -> str:
    """Join the texts of one message; blank ones count only where there is no other."""
    return "\n".join([text for text in parts if text.strip()] or parts[:1])


def content_text(value: Any) -> str:
    """Return message content as text: a text, a list of parts, one part, or nothing."""
    if value is None:
        return ""
    if isinstance(value, list):
        return joined([part_text(part) for part in value])
    if isinstance(value, str) or "text" in as_dict(value) or "type" in as_dict(value):
        return part_text(value)
    return compact_json(value)


def parse_time(value: Any) -> float | None:
    """Return seconds since the epoch for an ISO text (naive means UTC) or a number; None if it is neither."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _number_time(value)
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value.strip())
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def _number_time(value: float) -> float | None:
    try:
        seconds = float(value)
    except OverflowError:
        return None
    if not math.isfinite(seconds):
        return None
    return seconds / 1000 if abs(seconds) > _MILLISECONDS_FROM else seconds


def without_lone_surrogates(text: str) -> str:
    """Replace halves of surrogate pairs with U+FFFD: they can't be stored or sent as UTF-8."""
    return text if text.isascii() else _LONE_SURROGATE.sub("\ufffd", text)


def storable(message: Message) -> Message:
    """Return `message` with every text fit to be written as UTF-8."""

    def clean(text: str | None) -> str | None:
        return None if text is None else without_lone_surrogates(text)

    fix = without_lone_surrogates
    calls = tuple(ToolCall(fix(c.id), fix(c.name), fix(c.arguments)) for c in message.tool_calls)
    return replace(
        message,
        content=fix(message.content),
        thinking=clean(message.thinking),
        tool_calls=calls,
        tool_call_id=clean(message.tool_call_id),
        name=clean(message.name),
        source=clean(message.source),
    )
