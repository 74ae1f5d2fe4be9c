"""A GGUF as a source of weights: dequantized by the `gguf` package, under Hugging Face's names and orders.

GGUFs of the architecture llama hold the rows of Q and K in an order in which neighbours turn together; here they are put
back into the order in which halves do.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

from akashic_daemon.engine.gguf_header import TensorPlace, read_header, read_table
from akashic_daemon.engine.torch_engine.architecture import Architecture, from_gguf
from akashic_daemon.errors import ModelError, Unsupported

_PLAIN = {"F32": "<f4", "F16": "<f2"}
_NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
_TENSOR = re.compile(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)\Z")
_FACTORS = "rope_freqs.weight"
_TURNED = re.compile(r"self_attn\.([qk])_proj\.(weight|bias)\Z")


class GgufFile:
    """See the module's text. Raises BadModelFile, ModelError, Unsupported."""

    def __init__(self, path: Path) -> None:
        try:
            import gguf
        except ImportError as error:
            raise Unsupported(
                f"opening the model {path}: the torch engine reads GGUFs by the package gguf, which isn't installed",
                hint="`./install.sh --with gpu`",
            ) from error
        self._path = path
        self._gguf = gguf
        header = read_header(path)
        self.size_bytes = header.size_bytes
        self._metadata = {key: _typed(value) for key, value in header.metadata.items()}
        self._places = {_translated(n, path): place for n, place in header.tensors.items() if n != _FACTORS}
        self._maps: dict[Path, np.memmap[Any, np.dtype[np.uint8]]] = {}

    @cached_property
    def architecture(self) -> Architecture:
        """What the metadata say."""
        embedding = self._places.get("model.embed_tokens.weight")
        if embedding is None:
            raise ModelError(f"opening the model {self._path}: token_embd.weight is missing", hint="get it again")
        return from_gguf(
            self._metadata,
            read_table(self._path, _FACTORS),
            tied="lm_head.weight" not in self._places,
            vocabulary_size=embedding.shape[0],
            where=str(self._path),
        )

    @property
    def names(self) -> frozenset[str]:
        """Tensors by Hugging Face's names."""
        return frozenset(self._places)

    @property
    def kind(self) -> str:
        """The commonest type, by values."""
        counts: Counter[int] = Counter()
        for place in self._places.values():
            counts[place.kind] += prod(place.shape)
        kind = counts.most_common(1)[0][0] if counts else 0
        return self._kind_name(kind).lower()

    def _kind_name(self, kind: int) -> str:
        try:
            return str(self._gguf.GGMLQuantizationType(kind).name)
        except ValueError:
            return f"number {kind}"

    def read(self, name: str) -> torch.Tensor:
        """Return one tensor, dequantized to float32 unless it is float16 already."""
        place = self._places[name]
        if place.path not in self._maps:
            self._maps[place.path] = np.memmap(place.path, np.uint8, "r")
        data = self._maps[place.path][place.offset_bytes : place.offset_bytes + place.size_bytes]
        found = torch.from_numpy(self._values(name, place, data))
        turned = _TURNED.search(name)
        if turned is None or self.architecture.name != "llama":
            return found
        heads = self.architecture.heads if turned[1] == "q" else self.architecture.kv_heads
        return halves_first(found, heads)

    def _values(self, name: str, place: TensorPlace, data: Any) -> Any:
        kind = self._kind_name(place.kind)
        if kind in _PLAIN:
            return np.array(data.view(_PLAIN[kind]).reshape(place.shape))
        try:
            rows = np.asarray(data).reshape(*place.shape[:-1], -1)
            return self._gguf.quants.dequantize(rows, self._gguf.GGMLQuantizationType(place.kind))
        except (NotImplementedError, ValueError) as error:
            raise Unsupported(
                f"reading {name} of {self._path}: its type {kind} can't be dequantized",
                hint="use the llama.cpp engine, or another GGUF",
            ) from error


def halves_first(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Return Q's or K's rows [heads x dim, …] with each head's even rows first, then its odd ones."""
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)


def _typed(text: str) -> int | float | str:
    """Return a value of the metadata, which are all text, as the number that it is."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def _translated(name: str, path: Path) -> str:
    found = _TENSOR.match(name)
    known = _NAMES.get(found[2]) if found else None
    if found is None or known is None:
        raise Unsupported(
            f"opening the model {path}: its tensor {name} is not known", hint="use the llama.cpp engine for it"
        )
    if found[1] is None:
        return f"{known}.{found[3]}"
    return f"model.layers.{found[1]}.{known}.{found[3]}"
