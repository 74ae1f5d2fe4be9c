"""Saving and loading sequences through llama.cpp: bytes in and out, each answer checked.

A pending shift (`llama_memory_seq_add`) isn't applied by saving; this engine never asks for one.
"""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from akashic_daemon.errors import EngineError

ByteArray = npt.NDArray[np.uint8]


def save_sequence(context: Any, sequence: int) -> ByteArray:
    """Return the whole of a sequence as a fresh, writable blob."""
    size_bytes = llama_cpp.llama_state_seq_get_size(context, sequence)
    blob = np.empty(size_bytes, np.uint8)
    written = llama_cpp.llama_state_seq_get_data(context, _pointer(blob), size_bytes, sequence)
    if written != size_bytes or not written:
        raise EngineError(f"saving sequence {sequence}: llama.cpp wrote {written:,} of {size_bytes:,} bytes")
    return blob


def save_sequence_into(context: Any, sequence: int, into: ByteArray) -> int:
    """Write the whole of a sequence into `into`, with no copy between; return the bytes used."""
    written = llama_cpp.llama_state_seq_get_data(context, _pointer(into), into.nbytes, sequence)
    if not written:
        raise EngineError(f"saving sequence {sequence} into {into.nbytes:,} bytes: llama.cpp refused")
    return int(written)


def load_sequence(context: Any, sequence: int, blob: ByteArray) -> None:
    """Fill a sequence from a blob; what it held is gone, also when this raises (too few free cells, a foreign blob)."""
    read = llama_cpp.llama_state_seq_set_data(context, _pointer(blob), blob.nbytes, sequence)
    if read != blob.nbytes:
        raise EngineError(f"loading {blob.nbytes:,} bytes into sequence {sequence}: llama.cpp took {read:,}")


def _pointer(blob: ByteArray) -> Any:
    assert blob.flags.c_contiguous
    return ctypes.cast(blob.ctypes.data, ctypes.POINTER(ctypes.c_uint8))
