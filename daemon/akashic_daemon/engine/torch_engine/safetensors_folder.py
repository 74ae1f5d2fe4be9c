"""A Hugging Face folder as a source of weights: its files are mapped, and read by ourselves."""

from __future__ import annotations

from collections import Counter
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

from akashic_daemon.engine.hf_folder import read_json, tensor_places, weight_files
from akashic_daemon.engine.torch_engine.architecture import Architecture, from_config
from akashic_daemon.errors import Unsupported

_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class SafetensorsFolder:
    """See the module's text. Raises BadModelFile for files that lack, are cut off or aren't what they should be."""

    def __init__(self, folder: Path) -> None:
        self.architecture: Architecture = from_config(read_json(folder / "config.json"), str(folder))
        self.size_bytes = sum(file.stat().st_size for file in weight_files(folder))
        places = tensor_places(folder)
        # Old checkpoints store the rope's frequencies, which config.json says already.
        self._places = {name: p for name, p in places.items() if not name.endswith("rotary_emb.inv_freq")}
        self._maps: dict[Path, np.memmap[Any, np.dtype[np.uint8]]] = {}

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
        mapped, kind, count = self._maps[place.file], _TYPES[place.kind], prod(place.shape)
        return torch.frombuffer(mapped, dtype=kind, count=count, offset=place.start_bytes).reshape(place.shape)
