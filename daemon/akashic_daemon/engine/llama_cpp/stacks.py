"""A blob's K and V as few arrays, one for all layers of a section: what lets numpy work on a whole block at once.

Views, all: what is written changes the blob. A layer's rows stand in the blob at equal distances from the next one's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from akashic_daemon.engine.llama_cpp.blob import Blob, BlobLayout, ByteArray


@dataclass(frozen=True, slots=True, eq=False)
class Stack:
    """K or V of a section's layers, as bytes: [layers, cells, row], or [layers, width, cells x value] if `transposed`."""

    data: ByteArray
    transposed: bool
    value_bytes: int
    """Of one value of one cell, where transposed."""

    def cells(self, first: int, count: int) -> ByteArray:
        """Return the part that belongs to so many cells from number `first` on."""
        if self.transposed:
            return self.data[:, :, first * self.value_bytes : (first + count) * self.value_bytes]
        return self.data[:, first : first + count]


def why_not_stacked(layout: BlobLayout) -> str | None:
    """Return why blobs of this layout have no stacks, None when they have."""
    for section, layers in enumerate(layout.section_layers):
        if layers and len(set(layout.v_row_bytes[layout.layers_of(section)])) > 1:
            return "its layers differ in how wide V is"
    return None


def stacks_of(blob: Blob) -> list[Stack]:
    """Return K and V of each section that has layers, in the blob's order."""
    layout, out = blob.layout, []
    assert layout is not None
    count = len(blob)
    for section, transposed in enumerate(layout.transposed):
        which = layout.layers_of(section)
        if which.start < which.stop:
            out.append(Stack(_stacked(blob.keys[which]), transposed=False, value_bytes=0))
            values = _stacked(blob.values[which])
            out.append(Stack(values, transposed, values.shape[2] // count if transposed else 0))
    return out


def _stacked(layers: tuple[ByteArray, ...]) -> ByteArray:
    first = layers[0]
    step = layers[1].ctypes.data - first.ctypes.data if len(layers) > 1 else first.nbytes
    shape, strides = (len(layers), *first.shape), (step, *first.strides)
    return np.lib.stride_tricks.as_strided(first, shape, strides, writeable=first.flags.writeable)
