"""Small types that every part of the daemon shares: ids, and the clock seam."""

from __future__ import annotations

import time
from typing import Literal, NewType, Protocol

SESSION_NAME_PATTERN = r"^(?!\.{1,2}\Z)[A-Za-z0-9._:-]{1,128}\Z"
"""What people name a session: letters, digits, `-`, `_`, `.`, `:`; at most 128. Not `.` or `..`: as a segment of a URL or path they mean another."""

NAMESPACE_PATTERN = r"(?:user|(?:project|session):[^\s:/\x00-\x1f\x7f](?:[^\x00-\x1f\x7f]{0,126}[^\s\x00-\x1f\x7f])?)"
"""Namespaces of memory: `user`, `project:NAME`, `session:NAME`. For a whole match."""

RequestId = NewType("RequestId", str)
"""Name of one request, unique in the daemon's life; stands in logs and responses."""

SequenceId = NewType("SequenceId", int)
"""An engine's handle for a set of KV cells, 0 <= id < Capabilities.max_sequences."""

MessageDigest = NewType("MessageDigest", str)
"""Tagged digest of one message's meaning (role, text, calls), e.g. `msg1:…`; times don't take part."""

ChainDigest = NewType("ChainDigest", str)
"""Tagged digest of a message and everything before it, e.g. `chain1:…`."""


BLOCK_TOKENS = 128
"""Most tokens of a KV block: what is kept below the engine comes in blocks (DESIGN section 2)."""


class Clock(Protocol):
    """Where time comes from; tests pass their own."""

    def now_s(self) -> float:
        """Seconds since the epoch."""

    def monotonic_s(self) -> float:
        """Seconds that never go backwards."""


class SystemClock:
    """The machine's clock."""

    def now_s(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic_s(self) -> float:
        """Seconds that never go backwards."""
        return time.monotonic()


Priority = Literal["interactive", "normal", "background"]
"""How urgent a request is: somebody waits for it, an agent does, or nobody."""
