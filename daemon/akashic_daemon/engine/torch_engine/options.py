"""How a model is to be loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

KvType = Literal["f16", "f32", "q8_0"]


@dataclass(frozen=True, slots=True)
class TorchOptions:
    """Zero means: take the model's own, or what the machine gives. `path` is a folder of safetensors or a GGUF."""

    name: str
    path: Path
    window_tokens: int = 0
    kv_tokens: int = 0
    kv_type: KvType = "f16"
    """f16 is the model's own 16-bit type: bfloat16 where its weights are."""
    max_sequences: int = 128
    device: str = "auto"
    """cpu, cuda, cuda:N, several with commas between, which share the layers, or auto: the first GPU, further ones when it is
    too small, cpu where there is none."""
    threads: int = 0
    cores: int = 1
    memory_bytes: int = 0
    """The machine's RAM; 0 leaves it unchecked."""
    page_tokens: int = 128
    """16 to 256, a power of two."""
    spare_pages: int = 16
    """Pages beyond those that full cells need: new tokens find whole pages although others are half used."""
    sparse_blocks: int = 0
    """Decode reads only so many pages a KV head, those that promise most; 0 reads all, which is exact."""
    gpu_kv_tokens: int = 0
    """KV stands in RAM, and the device's part of it takes the room of so many tokens; 0: all of it is on the device."""
    open_pages: int = 4
    """With KV in RAM: sequences that decode at the same time without their pages being fetched anew each step."""
    prefetch_tiles: int = 1
    """With KV in RAM: pages that each KV head fetches ahead of a step at most."""
    cuda_graphs: bool = True
    digests: Path | None = None
    """Where digests of weights are remembered."""
