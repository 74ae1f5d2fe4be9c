"""Which turns show files: results of tools that were called to read one, as transcripts have them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from akashic_daemon.memory.repeats import FileRead
from akashic_daemon.store.memory.rows import Turn

_CALL = re.compile(r"^\[calls (?P<name>[^\]\n]{1,100})\] (?P<arguments>\{.*\})$", re.MULTILINE)
_READS = re.compile(r"read|view|open|cat\b", re.IGNORECASE)
_PATHS = ("file_path", "path", "filename", "file")
_SHOWN = re.compile(r"cat (?:-n )?(?P<path>[\w./~-]+)")


def file_reads(turns: Sequence[Turn]) -> Iterator[FileRead]:
    """Yield the reads whose call stands just before its result; a turn of several calls tells nothing for sure."""
    for before, turn in pairwise(turns):
        if turn.previous_id != before.id or not turn.speaker.startswith("tool"):
            continue
        calls = _CALL.findall(before.text)
        if len(calls) == 1 and (read := _read(turn.id, *calls[0])) is not None:
            yield replace(read, length_chars=len(turn.text))


def _read(turn_id: int, name: str, text: str) -> FileRead | None:
    try:
        arguments: Any = json.loads(text)
    except ValueError:
        return None
    if not isinstance(arguments, dict):
        return None
    if isinstance(command := arguments.get("command"), str) and (shown := _SHOWN.fullmatch(command.strip())):
        return FileRead(turn_id, shown["path"])
    path = next((arguments[key] for key in _PATHS if isinstance(arguments.get(key), str)), None)
    if path is None or not _READS.search(name):
        return None
    first, count = arguments.get("offset"), arguments.get("limit")
    if not isinstance(first, int) and not isinstance(count, int):
        return FileRead(turn_id, path) if set(arguments) <= {*_PATHS, "offset", "limit", "command"} else None
    begin = first if isinstance(first, int) else 1
    return FileRead(turn_id, path, begin, begin + count - 1 if isinstance(count, int) else None)
