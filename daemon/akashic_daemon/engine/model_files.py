"""A model on disk, whichever form it has: a GGUF (in parts, perhaps) or a Hugging Face folder. Loads nothing."""

from __future__ import annotations

from pathlib import Path

from akashic_daemon.engine.gguf_header import GgufHeader, part_paths, read_header
from akashic_daemon.engine.hf_folder import describe_folder, weight_files
from akashic_daemon.errors import BadModelFile

_SHOWN_CHARS = 300


def describe_model(path: Path) -> GgufHeader:
    """Return what a model says of itself. Raises BadModelFile when anything of it is missing, broken or cut off."""
    try:
        is_folder = path.is_dir()
    except OSError as error:  # a name that is too long, a folder that can't be looked into
        shown = f"{str(path)[:_SHOWN_CHARS]}…" if len(str(path)) > _SHOWN_CHARS else str(path)
        raise BadModelFile(f"opening the model {shown}: {error.strerror or error}", hint="check the path") from error
    return describe_folder(path) if is_folder else read_header(path)


def files_of(path: Path) -> list[Path]:
    """Return the files whose bytes decide what the model computes. Raises BadModelFile when one lacks."""
    return [path / "config.json", *weight_files(path)] if path.is_dir() else part_paths(path)
