r"""A warm session as one file: framed parts that are written and read one after the other, none needed to find the next.

    file     "\x89AKASHIC\r\n\x1a\n", u16 version, u16 0, then parts; the last one is END, or FAIL with an error
    part     8 bytes mark, 4 bytes kind, u32 head bytes, u64 body bytes, u32 CRC of these; head (a JSON object), body,
             16 bytes BLAKE2b of everything before. All little-endian.

    HOME     head: session, title, model, fingerprint, parts (what the fingerprint is made of), tokens
    MESSAGES head: first (index), count; body: NDJSON of messages
    PROGRAM  head: policy, policy_since, ops, edit_reuse, places, window_start
    SAMPLED  head: ids: pairs of a message's index and the token ids that it was sampled as
    TRACE    head: model, fingerprint, tokens; body: as the store packs it
    LABEL    head: key; body: a block's label. Parents come first
    KV       head: key; body: the block's KV as exported, right after its label; missing where no KV was left
    END      head: messages, blocks, tokens, kv_bytes, notes

What is damaged is named and skipped: the reader goes on at the next mark. Nothing in a file names a place on a disk.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, BinaryIO

from akashic_daemon.errors import TranscriptError

VERSION = 1
FORMAT = "akashic-session"
"""What `--format` and answers call it."""
MAGIC = b"\x89AKASHIC\r\n\x1a\n"
_START = struct.Struct("<HH")
_MARK = b"\xf0\x9f\xa7\xb5part"
_HEAD = struct.Struct("<8s4sIQ")
_CRC = struct.Struct("<I")
_DIGEST_BYTES = 16
_SLICE_BYTES = 1 << 16
_MOST_HEAD_BYTES = 64 << 20
TAIL_BYTES = 1 << 16
"""So much of a file's end holds its last part."""


class Kind(StrEnum):
    """What a part holds; as it stands in the file."""

    HOME = "home"
    MESSAGES = "msgs"
    PROGRAM = "prog"
    SAMPLED = "samp"
    TRACE = "trac"
    LABEL = "labl"
    KV = "data"
    END = "end."
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Part:
    """A part that is what was written. `end_bytes`: where it ends in the file."""

    kind: str
    head: Mapping[str, Any]
    body: bytes
    end_bytes: int


@dataclass(frozen=True, slots=True)
class Damage:
    """A place where the file isn't what was written; `kind` of the part if that can still be told."""

    at_bytes: int
    what: str
    kind: str | None = None


def begin() -> bytes:
    """Return what a file begins with."""
    return MAGIC + _START.pack(VERSION, 0)


def part(kind: Kind, head: Mapping[str, Any], body: bytes = b"") -> Iterator[bytes]:
    """Give a part in pieces of at most 64 KiB or so."""
    words = json.dumps(head, separators=(",", ":")).encode()
    fixed = _HEAD.pack(_MARK, kind.value.encode(), len(words), len(body))
    fixed += _CRC.pack(zlib.crc32(fixed))
    digest = hashlib.blake2b(fixed + words, digest_size=_DIGEST_BYTES)
    digest.update(body)
    yield fixed + words
    view = memoryview(body)
    for at in range(0, len(body), _SLICE_BYTES):
        yield bytes(view[at : at + _SLICE_BYTES])
    yield digest.digest()


def is_archive(start: bytes) -> bool:
    """Tell by its first bytes if a file is one."""
    return start.startswith(MAGIC)


def read_parts(file: BinaryIO, label: str) -> Iterator[Part | Damage]:
    """Read a file from its beginning, one part in memory at a time.

    Raises TranscriptError when it isn't one, or a newer version's. The last thing given is END's or FAIL's part; where
    that is missing, Damage that says so.
    """
    start = file.read(len(MAGIC) + _START.size)
    if not is_archive(start) or len(start) < len(MAGIC) + _START.size:
        raise TranscriptError(f"reading {label}: it is no exported session", hint="`akashic session export --with-kv`")
    version, _ = _START.unpack(start[len(MAGIC) :])
    if version > VERSION:
        raise TranscriptError(
            f"reading {label}: it was written by a newer akashic (version {version} of the file, {VERSION} is known)",
            hint="install that version, or export without --with-kv",
        )
    at = len(start)
    size_bytes = file.seek(0, 2)
    while at < size_bytes:
        found, at = _read_one(file, at, size_bytes)
        yield found
        if isinstance(found, Part) and found.kind in (Kind.END, Kind.FAIL):
            return
    yield Damage(size_bytes, "the file ends before its last part: it was cut off")


def _read_one(file: BinaryIO, at: int, size_bytes: int) -> tuple[Part | Damage, int]:
    """Return what stands at a place, and where to go on."""
    file.seek(at)
    fixed = file.read(_HEAD.size + _CRC.size)
    sizes = _sizes(fixed)
    if sizes is None:
        return Damage(at, "something that is no part"), _next_mark(file, at + 1, size_bytes)
    kind, head_bytes, body_bytes = sizes
    end = at + len(fixed) + head_bytes + body_bytes + _DIGEST_BYTES
    if end > size_bytes or head_bytes > _MOST_HEAD_BYTES:
        return Damage(at, "a part that is cut off", kind), _next_mark(file, at + 1, size_bytes)
    words, body, digest = file.read(head_bytes), file.read(body_bytes), file.read(_DIGEST_BYTES)
    state = hashlib.blake2b(fixed + words, digest_size=_DIGEST_BYTES)
    state.update(body)
    if state.digest() != digest:
        return Damage(at, "a part with changed bytes", kind), end
    head = _as_object(words)
    return (Damage(at, "a part whose head is no object", kind) if head is None else Part(kind, head, body, end)), end


def _sizes(fixed: bytes) -> tuple[str, int, int] | None:
    if len(fixed) < _HEAD.size + _CRC.size:
        return None
    mark, kind, head_bytes, body_bytes = _HEAD.unpack_from(fixed)
    if mark != _MARK or _CRC.unpack_from(fixed, _HEAD.size) != (zlib.crc32(fixed[: _HEAD.size]),):
        return None
    return kind.decode("latin-1"), head_bytes, body_bytes


def _next_mark(file: BinaryIO, at: int, size_bytes: int) -> int:
    overlap = len(_MARK) - 1
    while at < size_bytes:
        file.seek(at)
        chunk = file.read(_SLICE_BYTES)
        found = chunk.find(_MARK)
        if found >= 0:
            return at + found
        at += max(1, len(chunk) - overlap)
    return size_bytes


def _as_object(words: bytes) -> dict[str, Any] | None:
    try:
        head = json.loads(words)
    except (ValueError, RecursionError):
        return None
    return head if isinstance(head, dict) else None


def last_part(tail: bytes) -> Part | None:
    """Return END's or FAIL's part out of a file's last bytes, None when they don't end with one."""
    at = tail.rfind(_MARK)
    sizes = _sizes(tail[at : at + _HEAD.size + _CRC.size]) if at >= 0 else None
    if sizes is None:
        return None
    kind, head_bytes, body_bytes = sizes
    words_at = at + _HEAD.size + _CRC.size
    end = words_at + head_bytes + body_bytes
    digest = hashlib.blake2b(tail[at:end], digest_size=_DIGEST_BYTES).digest()
    if kind not in (Kind.END, Kind.FAIL) or tail[end:] != digest:
        return None
    head = _as_object(tail[words_at : words_at + head_bytes])
    return None if head is None else Part(kind, head, b"", len(tail))
