"""A Hugging Face folder: config.json, and weights in one or several safetensors files, mapped and read by ourselves.

The format (https://github.com/huggingface/safetensors): u64 length of a JSON header, the header, then the values.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

from akashic_daemon.engine.torch_engine.architecture import Architecture, from_config
from akashic_daemon.errors import BadModelFile, Unsupported

_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_SIZES = {"F32": 4, "F16": 2, "BF16": 2}
_LONGEST_HEADER = 100 << 20


@dataclass(frozen=True, slots=True)
class _Place:
    file: Path
    kind: str
    shape: tuple[int, ...]
    start: int


class SafetensorsFolder:
    """See the module's text. Raises BadModelFile for files that lack, are cut off or aren't what they should be."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = read_json(folder / "config.json")
        self.architecture: Architecture = from_config(self.config, str(folder))
        self._places: dict[str, _Place] = {}
        self._maps: dict[Path, np.memmap[Any, np.dtype[np.uint8]]] = {}
        self.size_bytes = 0
        for file in weight_files(folder):
            self.size_bytes += file.stat().st_size
            self._places |= _places(file)

    @property
    def names(self) -> frozenset[str]:
        """Tensors by name."""
        return frozenset(self._places)

    @property
    def kind(self) -> str:
        """The commonest type, by values."""
        counts: Counter[str] = Counter()
        for place in self._places.values():
            counts[place.kind.lower()] += prod(place.shape)
        return counts.most_common(1)[0][0] if counts else "none"

    def read(self, name: str) -> torch.Tensor:
        """Return one tensor; it shares the file's pages until it is copied."""
        place = self._places[name]
        if place.kind not in _TYPES:
            raise Unsupported(
                f"reading {name} of {place.file}: values of type {place.kind} are not known",
                hint=f"get weights in one of {', '.join(_TYPES)}, or a GGUF",
            )
        if place.file not in self._maps:
            self._maps[place.file] = np.memmap(place.file, np.uint8, "c")
        count = prod(place.shape)
        values = torch.frombuffer(
            self._maps[place.file], dtype=_TYPES[place.kind], count=count, offset=place.start
        )  # fmt: skip
        return values.reshape(place.shape)


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object. Raises BadModelFile."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise BadModelFile(
            f"opening the model {path.parent}: it has no {path.name}",
            hint="give a Hugging Face folder, or a .gguf file",
        ) from error
    except (OSError, ValueError) as error:
        raise BadModelFile(f"reading {path}: {error}", hint="download it again") from error
    if not isinstance(found, dict):
        raise BadModelFile(f"reading {path}: it holds no JSON object", hint="download it again")
    return found


def weight_files(folder: Path) -> list[Path]:
    """Return the files that hold a folder's weights. Raises BadModelFile when any lacks."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        listed = read_json(index).get("weight_map")
        if not isinstance(listed, Mapping) or not all(_plain(name) for name in listed.values()):
            raise BadModelFile(f"reading {index}: its weight_map is no list of files", hint="download it again")
        files = [folder / name for name in sorted(set(listed.values()))]
    else:
        files = [folder / "model.safetensors"]
    for file in files:
        if not file.is_file():
            raise BadModelFile(
                f"opening the model {folder}: {file.name} is missing", hint="download the whole folder, as safetensors"
            )
    return files


def _plain(name: Any) -> bool:
    return isinstance(name, str) and name == Path(name).name


def _places(file: Path) -> dict[str, _Place]:
    return {name: place for name, place in _entries(file) if not name.endswith("rotary_emb.inv_freq")}


def _entries(file: Path) -> Iterator[tuple[str, _Place]]:
    size_bytes = file.stat().st_size
    with file.open("rb") as opened:
        start = opened.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 0 < length <= min(size_bytes - 8, _LONGEST_HEADER):
            raise BadModelFile(f"reading {file}: it is no safetensors file, or cut off", hint="download it again")
        try:
            header = json.loads(opened.read(length))
        except ValueError as error:
            raise BadModelFile(f"reading {file}: its header is no JSON", hint="download it again") from error
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            shape, (begin, end) = tuple(int(n) for n in entry["shape"]), entry["data_offsets"]
            place = _Place(file, str(entry["dtype"]), shape, 8 + length + int(begin))
        except (KeyError, TypeError, ValueError) as error:
            raise BadModelFile(
                f"reading {file}: the entry of {name} can't be read", hint="download it again"
            ) from error
        wrong = place.kind in _SIZES and (min(shape, default=1) < 0 or prod(shape) * _SIZES[place.kind] != end - begin)
        if wrong or begin < 0 or 8 + length + end > size_bytes:
            raise BadModelFile(f"reading {file}: {name} is cut off or of another size", hint="download it again")
        yield name, place
