"""The forward pass: tokens to logits, in the order in which the Llama family computes. Attention is handed in."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from akashic_daemon.engine.torch_engine.architecture import Architecture
from akashic_daemon.engine.torch_engine.layers import FewRows, LayerMath, ManyRows, serves_few
from akashic_daemon.engine.torch_engine.weights import Layer, Weights


class Attention(Protocol):
    """What a layer needs of KV."""

    def run(self, layer: int, qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor], plan: Any) -> torch.Tensor:
        """Add the rows' K and V, and return what their Q sees, each [rows, heads, head_dim]."""


class Model:
    """Weights with their shape."""

    def __init__(self, shape: Architecture, weights: Weights) -> None:
        self.shape = shape
        self.weights = weights
        self._many = ManyRows(shape.norm_epsilon)
        self._few = FewRows(shape.norm_epsilon)

    def logits(
        self, attention: Attention, plan: Any, tokens: torch.Tensor, wanted: torch.Tensor | None
    ) -> torch.Tensor:
        """Compute rows of `tokens` and return the logits of the rows `wanted` (None: all), in the weights' type."""
        x = self.weights.embedding[tokens]
        math: LayerMath = self._few if serves_few(x) else self._many
        for number, layer in enumerate(self.weights.layers):
            seen = attention.run(number, self._heads(layer, math.qkv(layer, x)), plan)
            x = math.attended(layer, seen.reshape(len(x), -1), x)
            x = math.mlp(layer, x)
        return math.head(self.weights, x if wanted is None else x[wanted])

    def _heads(self, layer: Layer, qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        shape = self.shape
        counts = [shape.heads, shape.kv_heads, shape.kv_heads]
        q, k, v = torch.split(qkv.view(len(qkv), sum(counts), shape.head_dim), counts, dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._many.normed(q, layer.q_norm), self._many.normed(k, layer.k_norm)
        return q, k, v
