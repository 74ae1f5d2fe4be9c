"""Turning Q and K on the device: angles in float64, reduced before they are rounded, so that far positions stay exact."""

from __future__ import annotations

import torch

from akashic_daemon.engine.torch_engine.rope import Rope


class Turning:
    """A rope on one device; halves turn together."""

    def __init__(self, rope: Rope, device: torch.device) -> None:
        self.scale = rope.attention_scale
        self.frequencies = torch.from_numpy(rope.frequencies).to(device)

    def phasors(self, positions: torch.Tensor, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosine and sine [*positions, head_dim / 2] of integer positions, without the attention scale."""
        angles = positions.to(torch.float64)[..., None] * self.frequencies
        return angles.cos().to(dtype), angles.sin().to(dtype)

    def turn(self, x: torch.Tensor, positions: torch.Tensor, *, scaled: bool = False) -> torch.Tensor:
        """Return `x` [n, heads, head_dim] turned by `positions` [n], in its own type; `scaled` by the attention scale."""
        wide = x.dtype if x.dtype == torch.float64 else torch.float32
        return turned(x.to(wide), *self.phasors(positions, wide), self.scale if scaled else 1.0).to(x.dtype)


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """Return `x` [n, heads, head_dim] turned by the phasors [n, head_dim / 2] and scaled."""
    cos, sin = cos[:, None] * scale, sin[:, None] * scale
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)
