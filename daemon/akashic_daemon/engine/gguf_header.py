"""The header of a GGUF file, read by ourselves: what a model is, and whether all its tensors are in the file.

Costs a read of the header alone (megabytes, most of it vocabulary); nothing is loaded or mapped. Knows no engine. The
format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from akashic_daemon.errors import BadModelFile

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_BUFFER_BYTES = 1 << 20
_MAX_DIMENSIONS = 4
_ALIGNMENT_BYTES = 32
_SHOWN_CHARS = 200
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf\Z")
_STRING, _ARRAY = 8, 9
_F32 = 0
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82),
    23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2),
    34: (256, 54), 35: (256, 66), 39: (32, 17),
}  # fmt: skip
"""Tensor type -> (values, bytes) of one block. A type that isn't here counts as one byte a tensor: its end is unknown."""

Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Table:
    """Where an f32 tensor without a layer of its own lies (rope factors, norms): small, and read by us."""

    path: Path
    offset_bytes: int
    values: int


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where a tensor lies. `kind` is GGUF's number of its type; `shape` has the slowest dimension first."""

    path: Path
    kind: int
    shape: tuple[int, ...]
    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What a file says of its model. Counts are 0 where it doesn't say; `metadata` holds its short plain values.

    tables: the f32 tensors of one dimension that belong to no layer, by name. tensors: all of them. vocabulary: which bytes of the first file say
    how text becomes tokens.
    """

    architecture: str
    description: str
    size_bytes: int
    parameters_count: int
    vocabulary_size: int
    trained_window_tokens: int
    has_chat_template: bool
    metadata: Mapping[str, str]
    tables: Mapping[str, Table]
    vocabulary: tuple[tuple[int, int], ...] = ()
    tensors: Mapping[str, TensorPlace] = field(default_factory=dict)


def read_header(path: Path) -> GgufHeader:
    """Read a model's header. Raises BadModelFile when a file is missing, unreadable, no GGUF, or cut off anywhere.

    A model in parts is named by its first part; parameters and size are those of all. An unchanged file is read once.
    """
    first, *others = [_read_file(part) for part in part_paths(path)]
    if not others:
        return first
    return replace(
        first,
        size_bytes=first.size_bytes + sum(o.size_bytes for o in others),
        parameters_count=first.parameters_count + sum(o.parameters_count for o in others),
        tables={name: table for part in (first, *others) for name, table in part.tables.items()},
        tensors={name: place for part in (first, *others) for name, place in part.tensors.items()},
    )


def part_paths(path: Path) -> list[Path]:
    """Return the files of a model, the named one first. Raises BadModelFile when that is a later part."""
    split = _PART.search(path.name)
    if split is None:
        return [path]
    if int(split[1]) != 1:
        raise BadModelFile(
            f"opening the model {path}: it is part {int(split[1])} of a model", hint="give its first part, -00001-of-…"
        )
    stem = path.name[: split.start()]
    return [path, *(path.with_name(f"{stem}-{n:05}-of-{split[2]}.gguf") for n in range(2, int(split[2]) + 1))]


def read_table(path: Path, name: str) -> npt.NDArray[np.float32] | None:
    """Return the values of one of `GgufHeader.tables`, None when the model has no such tensor. Raises BadModelFile."""
    table = read_header(path).tables.get(name)
    if table is None:
        return None
    try:
        found = np.fromfile(table.path, "<f4", table.values, offset=table.offset_bytes)
    except OSError as error:
        raise BadModelFile(f"reading {name} of {table.path}: {error}", hint="check the path") from error
    if len(found) != table.values:
        raise BadModelFile(f"reading {name} of {table.path}: it is cut off", hint="did the file change since?")
    return found.astype(np.float32)


def tokenizer_digest(path: Path) -> str:
    """Return a tagged digest of all that says how text becomes tokens; the chat template isn't of that. Raises BadModelFile."""
    digest = hashlib.blake2b(digest_size=16)
    spans = read_header(path).vocabulary
    try:
        with path.open("rb") as file:
            for start, end in spans:
                file.seek(start)
                digest.update(file.read(end - start))
    except OSError as error:
        raise BadModelFile(
            f"reading the vocabulary of {path}: {error.strerror or error}", hint="check the path"
        ) from error
    return "tokenizer1:" + digest.hexdigest()


def _read_file(path: Path) -> GgufHeader:
    doing = f"opening the model {path}"
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            kind = "a folder" if stat.S_ISDIR(found.st_mode) else "no regular file"
            raise BadModelFile(f"{doing}: it is {kind}", hint="give the .gguf file itself")
        return _read(path, found.st_size, found.st_mtime_ns)
    except FileNotFoundError as error:
        raise BadModelFile(f"{doing}: there is no such file", hint="check the path") from error
    except OSError as error:
        raise BadModelFile(f"{doing}: {error.strerror or error}", hint="check the path and its permissions") from error
    except ValueError as error:  # a NUL in the path
        raise BadModelFile(f"opening the model {str(path)!r}: {error}", hint="check the path") from error


@lru_cache(maxsize=64)
def _read(path: Path, size_bytes: int, _mtime_ns: int) -> GgufHeader:
    with path.open("rb", buffering=_BUFFER_BYTES) as file:
        return _Parser(file, path, size_bytes).header()


class _Parser:
    """One pass over one file."""

    def __init__(self, file: BinaryIO, path: Path, size_bytes: int) -> None:
        self._file = file
        self._path = path
        self._size_bytes = size_bytes
        self._values: dict[str, Value] = {}
        self._lengths: dict[str, int] = {}
        self._tables: dict[str, Table] = {}
        self._places: dict[str, TensorPlace] = {}
        self._vocabulary: list[tuple[int, int]] = []

    def header(self) -> GgufHeader:
        self._check_kind()
        tensor_count, value_count = self._number("<Q"), self._number("<Q")
        for _ in range(value_count):
            start = self._file.tell()
            key = self._text()
            self._value(key, self._number("<I"))
            if key.startswith("tokenizer.") and not key.startswith("tokenizer.chat_template"):
                self._vocabulary.append((start, self._file.tell()))
        parameters_count = self._tensors(tensor_count)
        architecture = str(self._values.get("general.architecture", ""))
        name = self._values.get("general.name") or self._values.get("general.basename") or ""
        return GgufHeader(
            architecture=architecture,
            description=" ".join(str(part) for part in (architecture, name) if part),
            size_bytes=self._size_bytes,
            parameters_count=parameters_count,
            vocabulary_size=self._lengths.get("tokenizer.ggml.tokens", 0),
            trained_window_tokens=_whole(self._values.get(f"{architecture}.context_length")),
            has_chat_template="tokenizer.chat_template" in self._values,
            metadata={k: str(v) for k, v in self._values.items() if len(str(v)) <= _SHOWN_CHARS},
            tables=self._tables,
            vocabulary=tuple(self._vocabulary),
            tensors=self._places,
        )

    def _check_kind(self) -> None:
        magic = self._file.read(4)
        if magic != _MAGIC:
            what = f"it begins with {magic!r}" if magic else "it is empty"
            raise BadModelFile(
                f"opening the model {self._path}: it is not a GGUF file ({what})",
                hint="convert it with llama.cpp's convert_hf_to_gguf.py, or get a GGUF of it",
            )
        version = self._number("<I")
        if version not in _VERSIONS:
            known = " and ".join(map(str, _VERSIONS))
            raise self._broken(f"its GGUF version is {version}; versions {known} are known", "get a newer conversion")

    def _tensors(self, count: int) -> int:
        """Read the tensors' places and return how many parameters they hold. Raises when one ends behind the file."""
        parameters, end_bytes = 0, 0
        places: dict[str, TensorPlace] = {}
        for _ in range(count):
            name = self._text()
            dimensions = self._number("<I")
            if dimensions > _MAX_DIMENSIONS:
                raise self._broken(f"a tensor has {dimensions} dimensions")
            shape = tuple(self._number("<Q") for _ in range(dimensions))[::-1]
            values = prod(shape)
            kind = self._number("<I")
            block_values, block_bytes = _BLOCKS.get(kind, (max(values, 1), 1))
            parameters += values
            size_bytes = values // block_values * block_bytes
            places[name] = TensorPlace(self._path, kind, shape, self._number("<Q"), size_bytes)
            end_bytes = max(end_bytes, places[name].offset_bytes + size_bytes)
        alignment = _whole(self._values.get("general.alignment")) or _ALIGNMENT_BYTES
        start_bytes = -(-self._file.tell() // alignment) * alignment
        needed_bytes = start_bytes + end_bytes
        if count and needed_bytes > self._size_bytes:
            raise self._broken(f"it is cut off: it has {self._size_bytes:,} of {needed_bytes:,} bytes")
        self._places = {n: replace(p, offset_bytes=start_bytes + p.offset_bytes) for n, p in places.items()}
        self._tables = {
            name: Table(self._path, place.offset_bytes, place.shape[0])
            for name, place in self._places.items()
            if place.kind == _F32 and len(place.shape) == 1 and not name.startswith("blk.")
        }
        return parameters

    def _value(self, key: str, kind: int) -> None:
        if kind == _STRING:
            self._values[key] = self._text()
        elif kind == _ARRAY:
            self._lengths[key] = self._skip_array()
        elif kind in _SCALARS:
            self._values[key] = self._number(_SCALARS[kind])
        else:
            raise self._broken(f"its header holds a value of the unknown type {kind}")

    def _skip_array(self) -> int:
        kind, count = self._number("<I"), self._number("<Q")
        if kind in _SCALARS:
            self._skip(count * struct.calcsize(_SCALARS[kind]))
        elif kind == _STRING:
            for _ in range(count):
                self._skip(self._number("<Q"))
        else:
            raise self._broken(f"its header holds a list of the unknown type {kind}")
        return count

    def _number(self, layout: str) -> int:
        data = self._file.read(struct.calcsize(layout))
        if len(data) < struct.calcsize(layout):
            raise self._cut_off()
        return struct.unpack(layout, data)[0]  # type: ignore[no-any-return]  # float and bool stand for themselves

    def _text(self) -> str:
        length = self._number("<Q")
        if length > self._size_bytes - self._file.tell():
            raise self._cut_off()
        return self._file.read(length).decode("utf-8", "replace")

    def _skip(self, count: int) -> None:
        if count > self._size_bytes - self._file.tell():
            raise self._cut_off()
        self._file.seek(count, os.SEEK_CUR)

    def _cut_off(self) -> BadModelFile:
        return self._broken(f"it is cut off in its header, at {self._size_bytes:,} bytes")

    def _broken(self, what: str, hint: str = "download it again") -> BadModelFile:
        return BadModelFile(f"opening the model {self._path}: {what}", hint=hint)


def _whole(value: Value | None) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
