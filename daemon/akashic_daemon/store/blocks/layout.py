"""The bytes of an extent, and the checksums.

A file header (magic, version, number), then records: a header (magic, payload length, key hash, payload checksum) and
the payload. Both headers end in a checksum of themselves, so a scan can name what it sees without the index.

XXH3-128 rather than BLAKE2b: measured on one core 22.7 GB/s against 0.76 GB/s, and with the latter reading would be
slower than the disk. It finds damage; it isn't meant to withstand an attacker, who could rewrite the index as well.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from xxhash import xxh3_64_digest, xxh3_128_digest

from akashic_daemon.store.blocks.record import Bytes

VERSION = 1
_FILE_MAGIC = b"akashext"
_RECORD_MAGIC = b"akashrec"
_FILE = struct.Struct("<8sQQ")
_RECORD = struct.Struct("<8sQ16s16s")
_SUM_BYTES = 8
FILE_HEADER_BYTES = _FILE.size + _SUM_BYTES
RECORD_HEADER_BYTES = _RECORD.size + _SUM_BYTES


@dataclass(frozen=True, slots=True)
class RecordHeader:
    """What stands before a payload."""

    size_bytes: int
    key_hash: bytes
    payload_checksum: bytes


def payload_checksum(payload: Bytes) -> bytes:
    """Return the checksum of a payload, 16 bytes."""
    return xxh3_128_digest(payload)


def key_hash(key: str) -> bytes:
    """Return the hash by which a record's header names its key, 16 bytes."""
    return xxh3_128_digest(key.encode("utf-8", "surrogatepass"))


def record_checksum(key: str, kind: str, fingerprint: str, token_ids: bytes | None, checksum: bytes) -> bytes:
    """Return the checksum of a whole record, 16 bytes; `checksum` is its payload's. Each part is told by its length."""
    parts = [text.encode("utf-8", "surrogatepass") for text in (key, kind, fingerprint)]
    parts += [b"" if token_ids is None else b"ids" + token_ids, checksum]
    return xxh3_128_digest(b"".join(len(part).to_bytes(8, "little") + part for part in parts))


def file_header(number: int) -> bytes:
    """Return the header of extent `number`."""
    return _summed(_FILE.pack(_FILE_MAGIC, VERSION, number))


def file_version(header: Bytes, number: int) -> int | None:
    """Return the version that a file header tells, None when it is damaged or another file's."""
    body = _unsummed(header, FILE_HEADER_BYTES)
    if body is None:
        return None
    magic, version, told = _FILE.unpack(body)
    return int(version) if magic == _FILE_MAGIC and told == number else None


def record_header(key: str, size_bytes: int, checksum: bytes) -> bytes:
    """Return a record's header; `checksum` is the payload's."""
    return _summed(_RECORD.pack(_RECORD_MAGIC, size_bytes, key_hash(key), checksum))


def parse_record_header(header: Bytes) -> RecordHeader | None:
    """Return what a record header says, None when it is damaged."""
    body = _unsummed(header, RECORD_HEADER_BYTES)
    if body is None:
        return None
    magic, size_bytes, hashed, checksum = _RECORD.unpack(body)
    return RecordHeader(size_bytes, hashed, checksum) if magic == _RECORD_MAGIC else None


def _summed(body: bytes) -> bytes:
    return body + xxh3_64_digest(body)


def _unsummed(header: Bytes, size: int) -> bytes | None:
    raw = bytes(header)
    body, told = raw[:-_SUM_BYTES], raw[-_SUM_BYTES:]
    return body if len(raw) == size and xxh3_64_digest(body) == told else None
