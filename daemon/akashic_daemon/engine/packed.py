"""The head of exported KV: what the bytes behind it are, so that nothing else is ever imported.

    4 bytes mark, u8 version, u8 storage, u16 zero, 8 bytes KV type, u32 cells, i32 first position, u64 payload bytes

Little-endian. Whose KV it is (model, tokens) isn't here: who keeps the bytes keeps that too. Each engine lays out its
payload itself.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from akashic_daemon.engine.base import STORAGES
from akashic_daemon.errors import EngineError

_MARK = b"AkKV"
_VERSION = 1
_HEAD = struct.Struct("<4sBBH8sIiQ")
HEAD_BYTES = _HEAD.size


@dataclass(frozen=True, slots=True)
class Head:
    """What a payload is: KV of `cells` tokens at consecutive positions from `first` on."""

    storage: str
    kv_type: str
    cells: int
    first: int
    payload_bytes: int

    def write(self, into: memoryview) -> int:
        """Put the head at the beginning of `into`; return the bytes that head and payload take."""
        kind = self.kv_type.encode("ascii")
        assert len(kind) <= 8, self.kv_type
        _HEAD.pack_into(
            into, 0, _MARK, _VERSION, STORAGES.index(self.storage), 0, kind, self.cells, self.first, self.payload_bytes
        )  # fmt: skip
        return HEAD_BYTES + self.payload_bytes


def read_head(data: memoryview, kv_type: str, cells: int) -> Head:
    """Return the head of `data`, an export of so many cells by an engine with this KV type. Raises EngineError."""
    if data.nbytes < HEAD_BYTES:
        raise odd(f"{data.nbytes} bytes are less than its head")
    mark, version, storage, zero, kind, count, first, payload_bytes = _HEAD.unpack_from(data)
    if mark != _MARK or zero:
        raise odd("it doesn't begin as an export does")
    if version != _VERSION or storage >= len(STORAGES):
        raise odd(f"its version {version} with storage {storage} isn't known here")
    if kind != kv_type.encode("ascii").ljust(8, b"\0"):
        raise odd(f"its KV type is {kind.rstrip(bytes(1))!r}; the loaded model's is {kv_type}")
    if count != cells or first < 0:
        raise odd(f"it holds {count} cells from position {first} on; {cells} were asked for")
    if data.nbytes != HEAD_BYTES + payload_bytes:
        raise odd(f"it should take {HEAD_BYTES + payload_bytes:,} bytes, but takes {data.nbytes:,}")
    return Head(STORAGES[storage], kv_type, count, first, payload_bytes)


def odd(what: str) -> EngineError:
    """Return the error that says why exported KV can't be imported."""
    return EngineError(f"importing KV: {what}", hint="its tokens will have to be computed")
