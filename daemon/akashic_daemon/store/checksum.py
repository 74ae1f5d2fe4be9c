"""The checksum of a message's row: over every byte that a reader gets, also what a message's digest leaves out."""

from __future__ import annotations

import hashlib

ROW_CHECKSUM = "row_checksum"
"""The function's name in SQL."""


def row_checksum(chain: bytes, depth: object, json: bytes, created_at_s: object) -> str:
    """Return the tagged checksum of a row. Numbers may be of any type, for damage can change a value's type."""
    head = f"{depth!r} {created_at_s!r} {len(chain)} ".encode()
    return "row1:" + hashlib.blake2b(head + chain + json, digest_size=16).hexdigest()
