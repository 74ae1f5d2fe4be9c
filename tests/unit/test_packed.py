"""Exported KV says what it is: nothing else is imported. The fake engine keeps the contract that tiers rely on."""

from __future__ import annotations

from typing import Any

import pytest

from akashic_daemon.engine.base import AS_COMPUTED, Q8, STORAGES, BatchItem
from akashic_daemon.engine.fake import FakeEngine
from akashic_daemon.engine.packed import HEAD_BYTES, Head, read_head
from akashic_daemon.errors import EngineError, Unsupported
from akashic_daemon.types import SequenceId

A, B = SequenceId(0), SequenceId(1)
TEXT = list(b"the quick brown fox jumps over the lazy dog")


def some_export(**changes: Any) -> bytearray:
    payload = b"payload"
    fields = {"storage": Q8, "kv_type": "q8_0", "cells": 7, "first": 3, "payload_bytes": len(payload), **changes}
    data = bytearray(HEAD_BYTES) + payload
    Head(**fields).write(memoryview(data))
    return data


def test_a_head_is_read_as_it_was_written() -> None:
    data = some_export()
    assert read_head(memoryview(data), "q8_0", 7) == Head(Q8, "q8_0", 7, 3, 7)
    assert data[HEAD_BYTES:] == b"payload"


@pytest.mark.parametrize("length", range(HEAD_BYTES + 7))
def test_an_export_that_is_cut_is_refused(length: int) -> None:
    with pytest.raises(EngineError, match="importing KV"):
        read_head(memoryview(some_export())[:length], "q8_0", 7)


@pytest.mark.parametrize("at", range(HEAD_BYTES))
def test_a_changed_byte_of_a_head_is_refused_or_changes_what_is_read(at: int) -> None:
    right = read_head(memoryview(some_export()), "q8_0", 7)
    for value in range(256):
        data = some_export()
        if data[at] == value:
            continue
        data[at] = value
        try:
            assert read_head(memoryview(data), "q8_0", 7) != right
        except EngineError:
            continue


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"kv_type": "f16"}, "KV type is b'f16'"),
        ({"cells": 8}, "holds 8 cells"),
        ({"first": -1}, "position -1"),
        ({"payload_bytes": 8}, "but takes"),
    ],
)
def test_what_is_wrong_with_a_head_is_named(changes: dict[str, Any], names: str) -> None:
    with pytest.raises(EngineError, match=names):
        read_head(memoryview(some_export(**changes)), "q8_0", 7)


def exported(engine: FakeEngine, start: int, end: int, storage: str = AS_COMPUTED) -> memoryview:
    buffer = memoryview(bytearray(engine.export_bytes(end - start, storage)))
    return buffer[: engine.export_cells(A, start, end, buffer, storage)]


@pytest.mark.parametrize("storage", STORAGES)
def test_the_fake_engines_cells_leave_and_come_back_with_their_contents(storage: str) -> None:
    engine = FakeEngine()
    engine.decode([BatchItem(A, TEXT, 0, logits=True)])
    blocks = [(exported(engine, start, end, storage), start, end) for start, end in ((0, 20), (20, len(TEXT)))]
    for data, start, end in blocks:
        engine.import_cells(data.toreadonly(), B, start, end)
    assert [c.content for c in engine.cells[B].values()] == [c.content for c in engine.cells[A].values()]
    for sequence in (A, B):
        engine.decode([BatchItem(sequence, [1], len(TEXT), logits=True)])
    assert engine.cells[A][len(TEXT)].content == engine.cells[B][len(TEXT)].content
    assert engine.used_cells() == 2 * (len(TEXT) + 1)


def test_the_fake_engine_refuses_what_llama_cpp_refuses() -> None:
    engine = FakeEngine(kv_cells=50)
    engine.decode([BatchItem(A, TEXT, 0, logits=True)])
    data = exported(engine, 0, 8)
    with pytest.raises(EngineError, match="already"):
        engine.import_cells(data, A, 5, 13)
    with pytest.raises(EngineError, match="no KV cell"):
        engine.import_cells(data, B, 0, 8)
    with pytest.raises(EngineError, match="8 cells"):
        engine.import_cells(data, B, 0, 9)
    engine.release(A, 3, 4)
    with pytest.raises(EngineError, match="holds no position 3"):
        exported(engine, 0, 8)
    with pytest.raises(EngineError, match="are there"):
        engine.export_cells(A, 10, 20, memoryview(bytearray(40)), AS_COMPUTED)
    with pytest.raises(Unsupported, match="zip"):
        exported(engine, 10, 20, "zip")
    assert engine.position_range(B) is None
