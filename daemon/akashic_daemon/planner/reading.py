"""A model's shape from what the user names: a GGUF, a Hugging Face folder, its config.json, or a known shape."""

from __future__ import annotations

import json
from pathlib import Path

from akashic_daemon.errors import BadModelFile, Unsupported
from akashic_daemon.planner.shapes import ModelShape, from_config, from_gguf, named


def read_shape(model: str) -> ModelShape:
    """Return the shape of a file, a folder or a known name. Raises UsageError, BadModelFile, Unsupported."""
    path = Path(model)
    if path.is_dir():
        return _from_config_file(path / "config.json")
    if path.suffix == ".json":
        return _from_config_file(path)
    if path.exists() or path.suffix == ".gguf":
        return _from_gguf_file(path)
    return named(model)


def _from_gguf_file(path: Path) -> ModelShape:
    from akashic_daemon.engine.gguf_header import read_header

    header = read_header(path)
    metadata = dict(header.metadata)
    _refuse_experts(path.stem, metadata.get(f"{header.architecture}.expert_count", "0"))
    read = {
        name: place
        for name, place in header.tensors.items()
        if "output.weight" not in header.tensors or name != "token_embd.weight"
    }
    step_bytes = sum(place.size_bytes for place in read.values())
    return from_gguf(path.stem, metadata, header.vocabulary_size, step_bytes, header.size_bytes)


def _from_config_file(path: Path) -> ModelShape:
    try:
        config = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise BadModelFile(
            f"opening the model {path.parent}: it has no {path.name}", hint="give a GGUF instead"
        ) from error
    except (OSError, ValueError) as error:
        raise BadModelFile(f"reading {path}: {error}", hint="is it a Hugging Face config.json?") from error
    if not isinstance(config, dict):
        raise BadModelFile(f"reading {path}: it holds no JSON object", hint="is it a Hugging Face config.json?")
    name = path.parent.name or path.stem
    experts = config.get("num_local_experts") or config.get("num_experts") or 0
    _refuse_experts(name, str(experts))
    return from_config(name, {key: str(value) for key, value in config.items()})


def _refuse_experts(name: str, count: str) -> None:
    if count not in {"0", "1"}:
        raise Unsupported(
            f"planning for the model {name}: it is a mixture of {count} experts",
            hint="only dense models are planned yet",
        )
