"""Where weights come from: a folder of safetensors or a GGUF, both under Hugging Face's names and orders."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from akashic_daemon.engine.torch_engine.architecture import Architecture

Tensor = Any
"""A torch.Tensor: torch is only there where this engine is used, so types end here."""


class Source(Protocol):
    """A checkpoint, open."""

    @property
    def architecture(self) -> Architecture:
        """What its description says it is."""

    @property
    def names(self) -> frozenset[str]:
        """Its tensors, by the names of Hugging Face's Llama."""

    @property
    def kind(self) -> str:
        """What most of its weights are stored as: f32, f16, bf16, or a GGUF type's name."""

    @property
    def size_bytes(self) -> int:
        """Bytes of its files."""

    def read(self, name: str) -> Tensor:
        """Return one tensor on the CPU: float32, float16 or bfloat16; matrices are [out, in]."""


def open_source(path: Path) -> Source:
    """Open a folder or a GGUF. Raises BadModelFile, ModelError, Unsupported."""
    if path.is_dir():
        from akashic_daemon.engine.torch_engine.safetensors_folder import SafetensorsFolder

        return SafetensorsFolder(path)
    from akashic_daemon.engine.torch_engine.gguf_file import GgufFile

    return GgufFile(path)
