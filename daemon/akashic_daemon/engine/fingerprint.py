"""What KV depends on besides tokens and operations: any difference is another fingerprint, and its KV is never reused.

The weights are read once in full, as llama.cpp would load a same-shape model's KV without complaint; the digest is
remembered by the file's path, size, times and inode, so that an unchanged file isn't read again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from akashic_daemon.engine.model_files import files_of
from akashic_daemon.errors import BadModelFile

logger = logging.getLogger("akashic.models")
_CHUNK_BYTES = 1 << 22
_REMEMBERED = 256


def weights_digest(path: Path, memory: Path | None) -> str:
    """Return a tagged digest of all bytes of a model, each part included. `memory` is a JSON file of known ones."""
    known = _recall(memory)
    digest = hashlib.blake2b(digest_size=16)
    for part in files_of(path):
        digest.update(_file_digest(part, known).encode())
    _remember(memory, known)
    return "weights1:" + digest.hexdigest()


def fingerprint(weights: str, settings: Mapping[str, str | int | float | bool | None]) -> str:
    """Return the tagged digest of weights and of everything else that changes KV."""
    text = json.dumps({"weights": weights, **settings}, sort_keys=True)
    return "model1:" + hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _file_digest(path: Path, known: dict[str, str]) -> str:
    try:
        found = path.stat()
        name = f"{path.absolute()}|{found.st_size}|{found.st_mtime_ns}|{found.st_ctime_ns}|{found.st_ino}"
        if name in known:
            known[name] = known.pop(name)
            return known[name]
        if found.st_size > 1 << 30:
            logger.info("reading the %.1f GB of %s once, to know its weights again", found.st_size / 2**30, path)
        digest = hashlib.blake2b(digest_size=16)
        with path.open("rb", buffering=0) as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise BadModelFile(f"reading the model {path}: {error.strerror or error}", hint="check the path") from error
    known[name] = digest.hexdigest()
    return known[name]


def _recall(memory: Path | None) -> dict[str, str]:
    if memory is None:
        return {}
    try:
        found = json.loads(memory.read_text("utf-8"))
    except (OSError, ValueError):
        return {}  # nothing is lost: the weights are read again
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}


def _remember(memory: Path | None, known: dict[str, str]) -> None:
    if memory is None:
        return
    kept = dict(list(known.items())[-_REMEMBERED:])
    temporary = memory.with_suffix(f".{os.getpid()}")
    try:
        memory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary.write_text(json.dumps(kept), "utf-8")
        temporary.replace(memory)
    except OSError as error:
        logger.warning("the digests of weights can't be kept in %s: %s", memory, error)
