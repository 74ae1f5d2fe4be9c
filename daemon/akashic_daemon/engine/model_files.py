"""A model on disk, whichever form it has: a GGUF (in parts, perhaps) or a Hugging Face folder. Loads nothing."""

from __future__ import annotations

from pathlib import Path

from akashic_daemon.engine.gguf_header import GgufHeader, part_paths, read_header
from akashic_daemon.engine.hf_folder import describe_folder, weight_files


def describe_model(path: Path) -> GgufHeader:
    """Return what a model says of itself. Raises BadModelFile when anything of it is missing, broken or cut off."""
    return describe_folder(path) if path.is_dir() else read_header(path)


def files_of(path: Path) -> list[Path]:
    """Return the files whose bytes decide what the model computes. Raises BadModelFile when one lacks."""
    return [path / "config.json", *weight_files(path)] if path.is_dir() else part_paths(path)
