"""Figures that others, or this project, measured, and what the model says of them.

PLENA's column for the A100 (arXiv 2509.09505) names neither batch nor sharding. Its times are linear in the context: 0.211 ms
for each 1,024 tokens and 1.2 ms besides. That is the KV of Llama-3.3-70B in 16 bits (327,680 bytes a token) read at
1.555 TB/s, an A100-40G's whole bandwidth, with 4-bit weights shared by 16 sequences. These are the assumptions taken here;
such a batch needs many cards, so the figure is that of one card's share, communication left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from akashic_daemon.planner.machines import DESCRIBED, Machine
from akashic_daemon.planner.roofline import Setup, decode_step
from akashic_daemon.planner.shapes import NAMED, ModelShape

PLENA_SHARED_BY = 16
_A100_BANDWIDTH = 1.555e12
TORCH_ENGINE_H200 = ((8, 0, 214.0), (128, 0, 121.0), (32, 32, 201.0), (256, 32, 197.0))
"""README's decode of this project's engine on an H200, Llama-3-8B's shape: kilotokens, sparse blocks, tokens a second."""


@dataclass(frozen=True, slots=True)
class Published:
    """One figure: tokens a second of a setup. sequences_share: how many sequences one read of the weights serves."""

    source: str
    shape: ModelShape
    machine: Machine
    setup: Setup
    tokens_per_s: float
    sequences_share: int = 1

    def predicted(self) -> float:
        """Return what the model says: one sequence's attention and its share of the rest."""
        shared = replace(self.setup, batch=self.sequences_share)
        return self.sequences_share / decode_step(self.shape, self.machine, shared).seconds


def _plena() -> list[Published]:
    machine = replace(
        DESCRIBED["a100-40g"], stream=_A100_BANDWIDTH, kv_stream=_A100_BANDWIDTH, layer_s=0.0, flops=312e12
    )
    shape = NAMED["llama-3.1-70b"].quantised("int4")
    column = ((32, 125.0), (64, 68.0), (128, 35.0), (256, 18.0))
    return [
        Published("PLENA, A100", shape, machine, Setup(kilo * 1024), speed, PLENA_SHARED_BY) for kilo, speed in column
    ]


def _h200() -> list[Published]:
    shape, machine = NAMED["llama-3.1-8b"], DESCRIBED["h200"]
    return [
        Published("torch engine, H200 (README)", shape, machine, Setup(kilo * 1024, sparse_blocks=blocks), speed)
        for kilo, blocks, speed in TORCH_ENGINE_H200
    ]


def compare() -> list[dict[str, Any]]:
    """Return every published figure with the model's, and the error of the model as a share of the figure."""
    rows = []
    for figure in (*_plena(), *_h200()):
        said = figure.predicted()
        rows.append(
            {
                "source": figure.source,
                "what": _what(figure.setup),
                "measured": figure.tokens_per_s,
                "predicted": said,
                "error": said / figure.tokens_per_s - 1,
                "unit": "tok/s",
            }
        )
    return rows


def _what(setup: Setup) -> str:
    kind = f"{setup.sparse_blocks} sparse blocks" if setup.sparse_blocks else "dense"
    return f"decode at {setup.context_tokens // 1024}K, {kind}"
