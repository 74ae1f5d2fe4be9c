"""Reading a small tensor out of a GGUF: llama.cpp's API gives metadata, but no tensor's values.

Only the table of tensors is walked; metadata values are skipped. The file has been loaded by llama.cpp before, so that
anything odd here is our misreading or a file that changed: it raises, it never guesses.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from akashic_daemon.errors import ModelError

_SIZES_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Of GGUF's plain value types."""
_UINT32, _STRING, _ARRAY = 4, 8, 9
_F32 = 0
_DEFAULT_ALIGNMENT = 32
_MOST_DIMS = 4
_LONGEST_NAME_BYTES = 65535
_PART = re.compile(r"-00001-of-(\d{5})\.gguf$")


def read_f32_tensor(path: Path, name: str) -> npt.NDArray[np.float32] | None:
    """Return the values of tensor `name` flat, None when the model has none. Looks into each part of a split model."""
    for part in _parts(path):
        try:
            with part.open("rb") as file:
                found = _find(file, name)
        except (OSError, struct.error, ValueError, KeyError) as error:
            raise ModelError(
                f"reading the tensor table of {part}: {error!r}", hint="did the file change since it was loaded?"
            ) from error
        if found is not None:
            return found
    return None


def _parts(path: Path) -> Iterator[Path]:
    split = _PART.search(path.name)
    if split is None:
        yield path
        return
    for number in range(1, int(split[1]) + 1):
        yield path.with_name(f"{path.name[: split.start()]}-{number:05}-of-{split[1]}.gguf")


def _find(file: BinaryIO, name: str) -> npt.NDArray[np.float32] | None:
    file.seek(8)
    tensors, values = _unpack(file, "<QQ")
    alignment = _DEFAULT_ALIGNMENT
    for _ in range(values):
        key, (kind,) = _string(file), _unpack(file, "<I")
        if key == "general.alignment" and kind == _UINT32:
            (alignment,) = _unpack(file, "<I")
        else:
            _skip(file, kind)
    wanted: tuple[int, int] | None = None
    for _ in range(tensors):
        found, (dims,) = _string(file), _unpack(file, "<I")
        if dims > _MOST_DIMS:
            raise ValueError(f"tensor {found} has {dims} dimensions")
        shape = _unpack(file, f"<{dims}Q")
        kind, offset = _unpack(file, "<IQ")
        if found == name:
            if kind != _F32:
                raise ValueError(f"tensor {name} has type {kind}, not f32")
            wanted = (offset, math.prod(shape))
    if wanted is None:
        return None
    start = -(-file.tell() // alignment) * alignment
    file.seek(start + wanted[0])
    data = file.read(4 * wanted[1])
    if len(data) != 4 * wanted[1]:
        raise ValueError(f"tensor {name} is cut off")
    return np.frombuffer(data, "<f4").astype(np.float32)


def _unpack(file: BinaryIO, form: str) -> tuple[int, ...]:
    return struct.unpack(form, file.read(struct.calcsize(form)))


def _string(file: BinaryIO) -> str:
    (length,) = _unpack(file, "<Q")
    if length > _LONGEST_NAME_BYTES:
        raise ValueError(f"a name of {length} bytes")
    return file.read(length).decode("utf-8", "replace")


def _skip(file: BinaryIO, kind: int) -> None:
    if kind == _STRING:
        (length,) = _unpack(file, "<Q")
        file.seek(length, 1)
    elif kind == _ARRAY:
        inner, count = _unpack(file, "<IQ")
        if inner in (_STRING, _ARRAY):
            for _ in range(count):
                _skip(file, inner)
        else:
            file.seek(count * _SIZES_BYTES[inner], 1)
    else:
        file.seek(_SIZES_BYTES[kind], 1)
