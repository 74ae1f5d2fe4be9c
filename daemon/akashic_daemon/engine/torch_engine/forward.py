"""The forward pass: tokens to logits, in the order in which the Llama family computes. Attention is handed in."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from akashic_daemon.engine.torch_engine.architecture import Architecture
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

    def logits(
        self, attention: Attention, plan: Any, tokens: torch.Tensor, wanted: torch.Tensor | None
    ) -> torch.Tensor:
        """Compute rows of `tokens` and return the logits of the rows `wanted` (None: all), in the weights' type."""
        x = self.weights.embedding[tokens]
        for number, layer in enumerate(self.weights.layers):
            x = x + self._attention(number, layer, x, attention, plan)
            x = x + self._mlp(layer, x)
        if wanted is not None:
            x = x[wanted]
        return torch.nn.functional.linear(self._normed(x, self.weights.norm), self.weights.head)

    def _attention(self, number: int, layer: Layer, x: torch.Tensor, attention: Attention, plan: Any) -> torch.Tensor:
        shape = self.shape
        heads = [shape.heads, shape.kv_heads, shape.kv_heads]
        rows = layer.qkv(self._normed(x, layer.attention_norm)).view(len(x), sum(heads), shape.head_dim)
        q, k, v = torch.split(rows, heads, dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._normed(q, layer.q_norm), self._normed(k, layer.k_norm)
        seen = attention.run(number, (q, k, v), plan)
        return layer.attention_out(seen.reshape(len(x), -1))

    def _mlp(self, layer: Layer, x: torch.Tensor) -> torch.Tensor:
        gate, up = layer.gate_up(self._normed(x, layer.mlp_norm)).chunk(2, dim=-1)
        return layer.down(torch.nn.functional.silu(gate) * up)

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(x, weight.shape, weight, self.shape.norm_epsilon)
