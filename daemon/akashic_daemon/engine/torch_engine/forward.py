"""The forward pass: tokens to logits, in the order in which the Llama family computes. Attention is handed in."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby
from typing import Any, Protocol

import torch

from akashic_daemon.engine.torch_engine.architecture import Architecture
from akashic_daemon.engine.torch_engine.layers import FewRows, LayerMath, ManyRows, serves_few
from akashic_daemon.engine.torch_engine.weights import Layer, Weights


def computing_on(device: torch.device) -> AbstractContextManager[object]:
    """Let kernels that are launched within run on `device`: Triton launches where torch stands, not where tensors lie."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


class Attention(Protocol):
    """What a layer needs of KV."""

    def run(self, layer: int, qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor], plan: Any) -> torch.Tensor:
        """Add the rows' K and V, and return what their Q sees, each [rows, heads, head_dim]."""


class Model:
    """Weights with their shape. Layers may lie on several devices; the rows go from each to the next."""

    def __init__(self, shape: Architecture, weights: Weights) -> None:
        self.shape = shape
        self.weights = weights
        self._many = ManyRows(shape.norm_epsilon)
        self._few = FewRows(shape.norm_epsilon)
        self._stages = _stages_of(weights.layers)
        self.devices = tuple(device for device, _ in self._stages)
        """Of each stage: neighbouring layers on one device."""

    def logits(
        self, attention: Attention, plan: Any, tokens: torch.Tensor, wanted: torch.Tensor | None
    ) -> torch.Tensor:
        """Compute rows of `tokens` and return the logits of the rows `wanted` (None: all), in the weights' type."""
        x = self.embedded(tokens)
        for stage, device in enumerate(self.devices):
            with computing_on(device):
                x = self.through(stage, attention, plan, x.to(device))
        with computing_on(x.device):
            return self.head(x if wanted is None else x[wanted.to(x.device)])

    def embedded(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return what the first stage takes, on its device: [rows, width]."""
        return self.weights.embedding[tokens]

    def through(self, stage: int, attention: Attention, plan: Any, x: torch.Tensor) -> torch.Tensor:
        """Return what a stage makes of rows that are on its device, where torch must stand too."""
        math: LayerMath = self._few if serves_few(x) else self._many
        for number, layer in self._stages[stage][1]:
            seen = attention.run(number, self._heads(layer, math.qkv(layer, x)), plan)
            x = math.attended(layer, seen.reshape(len(x), -1), x)
            x = math.mlp(layer, x)
        return x

    def head(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of rows that the last stage made."""
        return (self._few if serves_few(x) else self._many).head(self.weights, x)

    def _heads(self, layer: Layer, qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        shape = self.shape
        counts = [shape.heads, shape.kv_heads, shape.kv_heads]
        q, k, v = torch.split(qkv.view(len(qkv), sum(counts), shape.head_dim), counts, dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._many.normed(q, layer.q_norm), self._many.normed(k, layer.k_norm)
        return q, k, v


def _stages_of(layers: Sequence[Layer]) -> list[tuple[torch.device, list[tuple[int, Layer]]]]:
    """Return the devices in order, each with its layers and their numbers."""
    stages = groupby(enumerate(layers), key=lambda numbered: numbered[1].attention_norm.device)
    return [(device, list(numbered)) for device, numbered in stages]
