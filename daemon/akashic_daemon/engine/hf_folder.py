"""A Hugging Face folder: config.json and weights as safetensors, described without loading anything; knows no engine.

The format of the weights (https://github.com/huggingface/safetensors): u64 length of a JSON header, the header, values.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from akashic_daemon.engine.gguf_header import GgufHeader
from akashic_daemon.errors import BadModelFile

VALUE_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_LONGEST_HEADER = 100 << 20
_SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor's values lie; `kind` is the format's name of their type."""

    file: Path
    kind: str
    shape: tuple[int, ...]
    start_bytes: int


def describe_folder(folder: Path) -> GgufHeader:
    """Return what a folder says of its model. Raises BadModelFile when a file is missing, broken or cut off."""
    config = read_json(folder / "config.json")
    places = tensor_places(folder)
    named = [config.get("model_type"), folder.name]
    return GgufHeader(
        architecture=str(config.get("model_type", "")),
        description=" ".join(str(part) for part in named if part),
        size_bytes=sum(file.stat().st_size for file in weight_files(folder)),
        parameters_count=sum(prod(place.shape) for place in places.values()),
        vocabulary_size=_whole(config.get("vocab_size")),
        trained_window_tokens=_whole(config.get("max_position_embeddings")),
        has_chat_template=_has_template(folder),
        metadata={key: str(value) for key, value in config.items() if len(str(value)) <= _SHOWN_CHARS},
        tables={},
    )


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


def tensor_places(folder: Path) -> dict[str, Place]:
    """Return where each tensor lies. Raises BadModelFile when a file isn't what it should be, or cut off."""
    try:
        return {name: place for file in weight_files(folder) for name, place in _entries(file)}
    except OSError as error:
        raise BadModelFile(f"reading the weights in {folder}: {error}", hint="check its permissions") from error


def _entries(file: Path) -> Iterator[tuple[str, Place]]:
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
    if not isinstance(header, dict):
        raise BadModelFile(f"reading {file}: its header is no JSON object", hint="download it again")
    for name, entry in header.items():
        if name != "__metadata__":
            yield name, _place(file, name, entry, 8 + length, size_bytes)


def _place(file: Path, name: str, entry: Any, values_at: int, size_bytes: int) -> Place:
    try:
        shape, kind = tuple(int(n) for n in entry["shape"]), str(entry["dtype"])
        begin, end = (int(n) for n in entry["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadModelFile(f"reading {file}: the entry of {name} can't be read", hint="download it again") from error
    size = prod(shape) * VALUE_BYTES[kind] if kind in VALUE_BYTES else end - begin
    if min(shape, default=1) < 0 or begin < 0 or size != end - begin or values_at + end > size_bytes:
        raise BadModelFile(f"reading {file}: {name} is cut off or of another size", hint="download it again")
    return Place(file, kind, shape, values_at + begin)


def _plain(name: Any) -> bool:
    return isinstance(name, str) and name == Path(name).name


def _has_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").is_file():
        return True
    settings = folder / "tokenizer_config.json"
    return settings.is_file() and bool(read_json(settings).get("chat_template"))


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0
