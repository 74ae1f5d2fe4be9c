"""What exported KV holds, by position: the same wherever in a cache the cells lay."""

from __future__ import annotations

import numpy as np

from akashic_daemon.engine.llama_cpp import LlamaCppEngine
from akashic_daemon.engine.llama_cpp.blob import kv_shape_of, parse_blob
from akashic_daemon.engine.packed import HEAD_BYTES


def by_position(engine: LlamaCppEngine, data: memoryview) -> dict[int, bytes]:
    """Return K and V of each cell of an export that is stored as computed."""
    window = 256 if engine.model.architecture == "gemma3" else 0
    shape = kv_shape_of(engine.model.metadata, 2, window, kv_type=kv_type_of(data))
    assert not isinstance(shape, str)
    blob = parse_blob(np.frombuffer(data, np.uint8)[HEAD_BYTES:], shape)
    assert blob.layout is not None
    parts = [*blob.keys]
    for section, transposed in enumerate(blob.layout.transposed):
        for rows in blob.values[blob.layout.layers_of(section)]:
            turned = rows.reshape(len(rows), len(blob), -1).swapaxes(0, 1) if transposed else rows
            parts.append(np.ascontiguousarray(turned).reshape(len(blob), -1))
    content = np.concatenate(parts, axis=1)
    return {int(position): row.tobytes() for position, row in zip(blob.positions(), content, strict=True)}


def sorted_by_position(engine: LlamaCppEngine, data: memoryview) -> list[bytes]:
    """Return the content of an export's cells in the order of their positions."""
    return [content for _, content in sorted(by_position(engine, data).items())]


def kv_type_of(data: memoryview) -> str:
    return bytes(data[8:16]).rstrip(b"\0").decode()
