"""What a decoder layer computes beside attention: for many rows by torch, for few on a GPU by one launch a matrix."""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn.functional import linear, rms_norm, silu

from akashic_daemon.engine.torch_engine.weights import Layer, Weights
from akashic_kernels.few_rows import MOST_ROWS, few_rows_linear


class LayerMath(Protocol):
    """Steps of a decoder; `x` [rows, width] is the residual stream."""

    def qkv(self, layer: Layer, x: torch.Tensor) -> torch.Tensor:
        """Return Q, K and V of the normed rows: [rows, all heads x head_dim]."""

    def attended(self, layer: Layer, seen: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return `x` with what attention saw [rows, heads x head_dim] added."""

    def mlp(self, layer: Layer, x: torch.Tensor) -> torch.Tensor:
        """Return `x` with what the MLP makes of it added."""

    def head(self, weights: Weights, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of the normed rows."""


class ManyRows:
    """Library products, each step rounded to the weights' type."""

    def __init__(self, epsilon: float) -> None:
        self._epsilon = epsilon

    def qkv(self, layer: Layer, x: torch.Tensor) -> torch.Tensor:
        """Norm, then multiply."""
        return layer.qkv(self.normed(x, layer.attention_norm))

    def attended(self, layer: Layer, seen: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Multiply, then add."""
        return x + layer.attention_out(seen)

    def mlp(self, layer: Layer, x: torch.Tensor) -> torch.Tensor:
        """Norm, multiply twice with the gate between, then add."""
        gate, up = layer.gate_up(self.normed(x, layer.mlp_norm)).chunk(2, dim=-1)
        return x + layer.down(silu(gate) * up)

    def head(self, weights: Weights, x: torch.Tensor) -> torch.Tensor:
        """Norm, then multiply."""
        return linear(self.normed(x, weights.norm), weights.head)

    def normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return rows scaled to a mean square of one, times `weight`."""
        return rms_norm(x, weight.shape, weight, self._epsilon)


class FewRows:
    """One launch a matrix, norms, gate and sums included; weights are read at memory speed."""

    def __init__(self, epsilon: float) -> None:
        self._epsilon = epsilon

    def qkv(self, layer: Layer, x: torch.Tensor) -> torch.Tensor:
        """Launch once."""
        linear = layer.qkv
        return few_rows_linear(x, linear.weight, bias=linear.bias, norm=layer.attention_norm, epsilon=self._epsilon)

    def attended(self, layer: Layer, seen: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Launch once."""
        linear = layer.attention_out
        return few_rows_linear(seen, linear.weight, bias=linear.bias, residual=x)

    def mlp(self, layer: Layer, x: torch.Tensor) -> torch.Tensor:
        """Launch twice."""
        first, second = layer.gate_up, layer.down
        inner = few_rows_linear(
            x, first.weight, bias=first.bias, norm=layer.mlp_norm, epsilon=self._epsilon, gated=True
        )
        return few_rows_linear(inner, second.weight, bias=second.bias, residual=x)

    def head(self, weights: Weights, x: torch.Tensor) -> torch.Tensor:
        """Norm, then multiply: the library reads so large a matrix as fast, and norms nothing twice."""
        return linear(rms_norm(x, weights.norm.shape, weights.norm, self._epsilon), weights.head)


def serves_few(x: torch.Tensor) -> bool:
    """Tell if `FewRows` is the faster way."""
    return x.is_cuda and len(x) <= MOST_ROWS
