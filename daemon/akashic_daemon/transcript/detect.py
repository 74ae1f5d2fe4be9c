"""Telling which format a file has, from the first MiB.

Two questions: is it JSON lines, one JSON document, or text; and whose records are they. JSON that is no known
transcript is text: people pipe any file into a chat.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from akashic_daemon.errors import TranscriptError
from akashic_daemon.transcript import claude_code, codex
from akashic_daemon.transcript.content import as_dict, as_list, as_text
from akashic_daemon.transcript.mini_swe_agent import looks_like_mini
from akashic_daemon.transcript.openai_runs import is_akashic_message
from akashic_daemon.transcript.openhands_v0 import V0_SOURCES
from akashic_daemon.transcript.repair import readable_front
from akashic_daemon.transcript.source import HEAD_BYTES, has_one_line, open_source

TEXT = "text"
_SAMPLE_LINES = 50
_MAGIC = (
    (b"\x1f\x8b", "gzip-compressed data"),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed data"),
    (b"PK\x03\x04", "a zip archive"),
    (b"SQLite format 3\x00", "an SQLite database"),
    (b"GGUF", "a GGUF model"),
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"%PDF", "a PDF document"),
    (b"\xff\xfe", "UTF-16 text"),
    (b"\xfe\xff", "UTF-16 text"),
)
_CLAUDE_FIELDS = frozenset(
    {"uuid", "sessionId", "parentUuid", "isSidechain", "session_id", "leafUuid", "messageId", "snapshot"}
)
_V0_KEYS = ("action", "observation")


class Container(Enum):
    """How a file holds its records."""

    LINES = "lines"
    DOCUMENT = "document"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class Sniffed:
    """What the head of a file says."""

    format: str
    container: Container


def sniff(path: Path) -> Sniffed:
    """Look at the head of a file. Raises TranscriptError if it is empty or binary."""
    head, is_whole = _head(path)
    text = head.decode("utf-8", "replace").removeprefix("\ufeff")
    if text.lstrip()[:1] not in ("{", "[", '"') and not _has_json_lines(text, is_whole):
        return Sniffed(TEXT, Container.TEXT)
    lines = _sample(text, is_whole)
    values = [value for line in lines if (value := _loads(line)) is not None]
    kinds = [kind for value in values if (kind := kind_of(value)) is not None]
    mostly_json = 2 * sum(isinstance(value, dict | list) for value in values) >= len(lines)
    if len(lines) > 1 and kinds and (mostly_json or (is_whole and _loads(text) is None)):
        return Sniffed("akashic" if "akashic" in kinds else kinds[0], Container.LINES)
    if not lines or len(lines) == 1:
        return _sniff_long_line(path, text)
    kind = kind_of(_front(text))
    return Sniffed(kind or TEXT, Container.DOCUMENT if kind else Container.TEXT)


def container_for(path: Path, format_name: str) -> Container:
    """Say how a file of a given format holds its records, whatever its records look like."""
    if format_name == TEXT:
        return Container.TEXT
    sniffed = sniff(path)
    if sniffed.container is not Container.TEXT:
        return sniffed.container
    head, is_whole = _head(path)
    text = head.decode("utf-8", "replace").removeprefix("\ufeff")
    looks_whole = is_whole and _loads(text) is not None
    return Container.DOCUMENT if looks_whole else Container.LINES


def kind_of(value: Any) -> str | None:
    """Name the format that a record, run or document belongs to; None if it is none that we know."""
    if isinstance(value, list):
        if looks_like_mini(value):
            return "mini-swe-agent"
        # A list of runs, each a list: no format nests deeper.
        elements = [e[0] if isinstance(e, list) and e else e for e in value[:_SAMPLE_LINES]]
        kinds = [kind for e in elements if isinstance(e, dict) and (kind := kind_of(e)) is not None]
        return "akashic" if "akashic" in kinds else kinds[0] if kinds else None
    record = as_dict(value)
    for name, test in _TESTS:
        if test(record):
            return name
    return None


def _is_claude_code(record: dict[str, Any]) -> bool:
    kind = as_text(record.get("type"))
    known = kind in claude_code.NOISE or kind in ("user", "assistant", "attachment")
    return known and bool(_CLAUDE_FIELDS & record.keys())


def _is_codex(record: dict[str, Any]) -> bool:
    kind = as_text(record.get("type"))
    if kind in codex.ENVELOPES:
        return "payload" in record
    parts = {as_text(as_dict(part).get("type")) for part in as_list(record.get("content"))}
    is_bare_item = kind in codex.ITEMS and ("call_id" in record or bool(parts & {"input_text", "output_text"}))
    return is_bare_item or as_text(record.get("record_type")) == "state"


def _is_openhands(record: dict[str, Any]) -> bool:
    if isinstance(record.get("messages"), list):
        return isinstance(record.get("response"), dict) and "choices" in record["response"]
    if record.get("source") not in (*V0_SOURCES, "hook"):
        return False
    return "kind" in record or ("id" in record and any(isinstance(record.get(key), str) for key in _V0_KEYS))


def _is_swe_agent(record: dict[str, Any]) -> bool:
    steps = as_dict(next(iter(as_list(record.get("trajectory"))), None))
    if "observation" in steps or "action" in steps:
        return True
    turns = as_dict(next(iter(as_list(record.get("history"))), None))
    return "role" in turns and ("agent" in turns or "info" in record or "trajectory" in record)


def _is_mini(record: dict[str, Any]) -> bool:
    if as_text(record.get("trajectory_format")).startswith("mini-swe-agent"):
        return True
    messages = record.get("messages")
    return isinstance(messages, list) and ("mini_version" in as_dict(record.get("info")) or looks_like_mini(messages))


def _is_atif(record: dict[str, Any]) -> bool:
    if as_text(record.get("schema_version")).startswith("ATIF"):
        return True
    return isinstance(record.get("steps"), list) and "agent" in record


def _is_openai(record: dict[str, Any]) -> bool:
    if isinstance(record.get("role"), str):
        return True
    lists = (as_list(record.get(key)) for key in ("messages", "traj", "simulations"))
    return any(isinstance(element, dict) for found in lists for element in found[:1])


_TESTS = (
    ("atif", _is_atif),
    ("claude-code", _is_claude_code),
    ("codex", _is_codex),
    ("openhands", _is_openhands),
    ("swe-agent", _is_swe_agent),
    ("mini-swe-agent", _is_mini),
    ("akashic", is_akashic_message),
    ("openai", _is_openai),
)


def _head(path: Path) -> tuple[bytes, bool]:
    """Return the head, and whether it is the whole file. Raises TranscriptError if it is empty or binary."""
    try:
        with open_source(path) as file:
            head = file.read(HEAD_BYTES + 1)
    except OSError as error:
        raise TranscriptError(f"reading transcript {path}: {error.strerror or error}") from error
    is_whole = len(head) <= HEAD_BYTES
    head = head[:HEAD_BYTES]
    if not head.removeprefix(b"\xef\xbb\xbf").strip():
        seen = f"{len(head)} bytes of white space" if head else "it is empty"
        raise TranscriptError(f"reading transcript {path}: {seen}", hint="give a file that holds messages")
    for magic, name in _MAGIC:
        if head.startswith(magic):
            raise TranscriptError(f"reading transcript {path}: it is {name}", hint="give UTF-8 text or JSON")
    decoded = head.decode("utf-8", "replace")
    strange = sum(character < " " and character not in "\t\n\r\f\b\x1b" for character in decoded)
    if b"\x00" in head or 10 * (decoded.count("\ufffd") + strange) > len(decoded):
        start = head[:8].hex(" ")
        raise TranscriptError(
            f"reading transcript {path}: binary data that begins with {start}", hint="give UTF-8 text or JSON"
        )
    return head, is_whole


def _sample(text: str, is_whole: bool) -> list[str]:
    """Return the first lines that are complete and not blank."""
    lines = text.split("\n")
    complete = lines if is_whole else lines[:-1]
    return [line for line in complete if line.strip()][:_SAMPLE_LINES]


def _has_json_lines(text: str, is_whole: bool) -> bool:
    """Tell whether a file whose first line is no JSON holds known records after it."""
    lines = _sample(text, is_whole)
    known = [line for line in lines if line.lstrip()[:1] == "{" and kind_of(_loads(line)) is not None]
    return len(lines) > 1 and 2 * len(known) >= len(lines)


def _loads(text: str) -> Any | None:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _front(text: str) -> Any | None:
    value = _loads(text)
    return readable_front(text, whole_elements=False) if value is None else value


def _sniff_long_line(path: Path, text: str) -> Sniffed:
    """Judge a file whose head holds no more than one complete line."""
    kind = kind_of(_front(text))
    if kind is None:
        return Sniffed(TEXT, Container.TEXT)
    return Sniffed(kind, Container.DOCUMENT if has_one_line(path) else Container.LINES)
