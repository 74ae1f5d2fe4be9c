"""A GGUF as a source of weights: dequantized by the `gguf` package, under Hugging Face's names and orders.

GGUFs of the architecture llama hold the rows of Q and K in an order in which neighbours turn together; here they are put
back into the order in which halves do.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from akashic_daemon.engine.gguf_header import part_paths, read_header
from akashic_daemon.engine.torch_engine.architecture import Architecture, from_gguf
from akashic_daemon.errors import ModelError, Unsupported

_PLAIN = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
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
                hint="pip install 'akashic-cli[gpu]'",
            ) from error
        self._path = path
        self._gguf = gguf
        self.size_bytes = read_header(path).size_bytes
        self._readers = [gguf.GGUFReader(part) for part in part_paths(path)]
        own = {tensor.name: tensor for reader in self._readers for tensor in reader.tensors}
        self._factors = own.pop(_FACTORS, None)
        self._tensors = {_translated(name, path): tensor for name, tensor in own.items()}

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """Values of the header; the vocabulary's lists are left out."""
        fields = self._readers[0].fields
        return {n: f.contents() for n, f in fields.items() if not n.startswith("tokenizer.ggml.")}

    @cached_property
    def architecture(self) -> Architecture:
        """What the metadata say."""
        embedding = self._tensors.get("model.embed_tokens.weight")
        if embedding is None:
            raise ModelError(f"opening the model {self._path}: token_embd.weight is missing", hint="get it again")
        return from_gguf(
            self.metadata,
            None if self._factors is None else np.array(self._factors.data, np.float32),
            tied="lm_head.weight" not in self._tensors,
            vocabulary_size=int(embedding.shape[-1]),
            where=str(self._path),
        )

    @property
    def names(self) -> frozenset[str]:
        """Tensors by Hugging Face's names."""
        return frozenset(self._tensors)

    @property
    def kind(self) -> str:
        """The commonest type, by values."""
        counts: Counter[str] = Counter()
        for tensor in self._tensors.values():
            counts[tensor.tensor_type.name] += int(tensor.n_elements)
        name = counts.most_common(1)[0][0] if counts else "none"
        return _PLAIN.get(name, name.lower())

    def read(self, name: str) -> torch.Tensor:
        """Return one tensor, dequantized to float32 unless it is float16 already."""
        tensor = self._tensors[name]
        kind = tensor.tensor_type
        try:
            values = tensor.data if kind.name in ("F32", "F16") else self._gguf.quants.dequantize(tensor.data, kind)
        except NotImplementedError as error:
            raise Unsupported(
                f"reading {tensor.name} of {self._path}: its type {kind.name} can't be dequantized",
                hint="use the llama.cpp engine, or another GGUF",
            ) from error
        found = torch.from_numpy(np.array(values))
        turned = _TURNED.search(name)
        if turned is None or self.architecture.name != "llama":
            return found
        heads = self.architecture.heads if turned[1] == "q" else self.architecture.kv_heads
        return halves_first(found, heads)


def halves_first(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Return Q's or K's rows [heads x dim, …] with each head's even rows first, then its odd ones."""
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)


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
