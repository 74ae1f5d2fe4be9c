"""A model's weights on the device, checked: every tensor there, of its shape, finite, and none that isn't understood."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from akashic_daemon.engine.torch_engine.architecture import Architecture
from akashic_daemon.engine.torch_engine.source import Source
from akashic_daemon.errors import ModelError, Unsupported

_MOST_NAMED = 4


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """x -> x @ weight.T + bias; `weight` is [out, in]."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Apply it."""
        return torch.nn.functional.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """One decoder layer. `qkv` gives Q's heads, then K's, then V's; `gate_up` the gate, then what it gates."""

    attention_norm: torch.Tensor
    qkv: Linear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    attention_out: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """All of a model. `head` is the embedding itself where they are tied."""

    embedding: torch.Tensor
    layers: tuple[Layer, ...]
    norm: torch.Tensor
    head: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Bytes that they take."""
        total = self.embedding.nbytes + self.norm.nbytes
        total += 0 if self.head is self.embedding else self.head.nbytes
        for layer in self.layers:
            tensors = (layer.attention_norm, layer.mlp_norm, layer.q_norm, layer.k_norm)
            total += sum(t.nbytes for t in tensors if t is not None)
            for linear in (layer.qkv, layer.attention_out, layer.gate_up, layer.down):
                total += linear.weight.nbytes + (0 if linear.bias is None else linear.bias.nbytes)
        return total


def load_weights(source: Source, devices: Sequence[torch.device], dtype: torch.dtype, where: str) -> Weights:
    """Read everything; `devices` are the layers'. Raises ModelError (missing, misshapen, NaN or infinite), Unsupported (tensors not understood)."""
    return _Loader(source, devices, dtype, where).load()


class _Loader:
    def __init__(self, source: Source, devices: Sequence[torch.device], dtype: torch.dtype, where: str) -> None:
        self._source = source
        self._devices = devices
        self._device = devices[0]
        self._dtype = dtype
        self._where = where
        self._left = set(source.names)

    def load(self) -> Weights:
        shape = self._source.architecture
        self._check_names(shape)
        embedding = self._take("model.embed_tokens.weight", shape.vocabulary_size, shape.width)
        layers = tuple(self._layer(number, shape) for number in range(shape.layers))
        norm = self._take("model.norm.weight", shape.width)  # beside the last layer, as is the head
        if shape.tied:
            self._left.discard("lm_head.weight")
            head = embedding.to(self._device)
        else:
            head = self._take("lm_head.weight", shape.vocabulary_size, shape.width)
        if self._left:
            raise Unsupported(
                f"loading the model {self._where}: {_some(self._left)} not known to its architecture "
                f"{shape.name}, so its answers would be wrong",
                hint="use the llama.cpp engine with a GGUF",
            )
        return Weights(embedding, layers, norm, head)

    def _check_names(self, shape: Architecture) -> None:
        needed = {"model.embed_tokens.weight", "model.norm.weight"} | (set() if shape.tied else {"lm_head.weight"})
        parts = ["input_layernorm", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
        parts += [f"self_attn.{letter}_proj" for letter in "qkvo"]
        parts += ["self_attn.q_norm", "self_attn.k_norm"] if shape.qk_norm else []
        needed |= {f"model.layers.{number}.{part}.weight" for number in range(shape.layers) for part in parts}
        missing = needed - self._left
        if missing:
            raise ModelError(
                f"loading the model {self._where}: {_some(missing)} missing", hint="download the whole model again"
            )

    def _layer(self, number: int, shape: Architecture) -> Layer:
        at, self._device = f"model.layers.{number}.", self._devices[number]
        width, inner, dim = shape.width, shape.inner, shape.head_dim
        q, kv = shape.heads * dim, shape.kv_heads * dim
        rows = [("q", q), ("k", kv), ("v", kv)]
        qk = [self._take(f"{at}self_attn.{x}_norm.weight", dim) if shape.qk_norm else None for x in "qk"]
        return Layer(
            attention_norm=self._take(at + "input_layernorm.weight", width),
            qkv=self._stacked([(f"{at}self_attn.{x}_proj", out) for x, out in rows], width),
            q_norm=qk[0],
            k_norm=qk[1],
            attention_out=self._stacked([(at + "self_attn.o_proj", width)], q),
            mlp_norm=self._take(at + "post_attention_layernorm.weight", width),
            gate_up=self._stacked([(at + "mlp.gate_proj", inner), (at + "mlp.up_proj", inner)], width),
            down=self._stacked([(at + "mlp.down_proj", width)], inner),
        )

    def _stacked(self, parts: list[tuple[str, int]], into: int) -> Linear:
        weight = torch.cat([self._take(f"{name}.weight", out, into) for name, out in parts])
        if not any(f"{name}.bias" in self._left for name, _ in parts):
            return Linear(weight)
        biases = [
            self._take(f"{name}.bias", out)
            if f"{name}.bias" in self._left
            else torch.zeros(out, dtype=self._dtype, device=self._device)
            for name, out in parts
        ]
        return Linear(weight, torch.cat(biases))

    def _take(self, name: str, *shape: int) -> torch.Tensor:
        self._left.discard(name)
        found: torch.Tensor = self._source.read(name)
        if tuple(found.shape) != shape:
            raise ModelError(
                f"loading the model {self._where}: {name} is {_size(found.shape)}, not {_size(shape)}",
                hint="its config.json belongs to another model; download it again",
            )
        moved = found.to(device=self._device, dtype=self._dtype, copy=True)
        if not bool(torch.isfinite(moved).all()):
            broken = (
                "NaN or infinite values" if not bool(torch.isfinite(found).all()) else "values too large for its type"
            )
            raise ModelError(
                f"loading the model {self._where}: {name} holds {broken}", hint="the file is broken; download it again"
            )
        return moved


def _size(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _some(names: set[str]) -> str:
    """Return the first names in a readable order, and how many more there are."""
    parts = [[int(piece) if piece.isdigit() else piece for piece in re.split(r"(\d+)", name)] for name in names]
    ordered = ["".join(map(str, piece)) for piece in sorted(parts, key=lambda p: [str(x).zfill(9) for x in p])]
    more = len(ordered) - _MOST_NAMED
    return (
        ", ".join(ordered[:_MOST_NAMED])
        + (f" and {more} more" if more > 0 else "")
        + (" are" if len(names) > 1 else " is")
    )
