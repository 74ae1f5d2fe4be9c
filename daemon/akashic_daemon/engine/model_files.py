"""A model on disk, whichever form it has: a GGUF (in parts, perhaps) or a Hugging Face folder. Loads nothing."""

from __future__ import annotations

from pathlib import Path

from akashic_daemon.engine.gguf_header import GgufHeader, part_paths, read_header
from akashic_daemon.engine.hf_folder import describe_folder, weight_files
from akashic_daemon.errors import AkashicError, BadModelFile

_SHOWN_CHARS = 300
_BESIDE_WEIGHTS = (
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
)
"""What a folder says besides config.json and weights: which files hold these, how text becomes tokens, what ends an answer."""
Files = tuple[tuple[str, int, int, int], ...]
"""A model's files: path, size, time of the last change and inode of each; of one that isn't there the size is -1."""


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


def files_now(path: Path) -> Files:
    """Return the files that a model is loaded from as they are now, those that may come yet among them."""
    beside = [path / name for name in _BESIDE_WEIGHTS] if path.is_dir() else []
    try:
        return tuple(_as_it_is(file) or (str(file), -1, 0, 0) for file in (*files_of(path), *beside))
    except AkashicError:
        return ()


def have_changed(files: Files) -> bool:
    """Tell if any of a model's files isn't as it was. One that is gone counts as the same: what was loaded of it is there."""
    return any((now := _as_it_is(Path(file[0]))) is not None and now != file for file in files)


def _as_it_is(file: Path) -> tuple[str, int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return str(file), found.st_size, found.st_mtime_ns, found.st_ino
