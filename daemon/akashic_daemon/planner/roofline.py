"""The model: a step takes as long as the slowest of what it reads and what it computes, part by part, and a fixed cost.

    weights    max(bytes / stream, flops / matrix rate), or their sum on a machine that doesn't overlap them
    attention  max(KV bytes / kv_stream, flops / attention rate), each token of the context or, sparse, of the chosen blocks
    fixed      layers x layer_s

Parts follow one another in a layer, so they add up. Overlap between cards, communication and sampling are not modelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from akashic_daemon.errors import UsageError
from akashic_daemon.planner.formats import bytes_per_value
from akashic_daemon.planner.machines import Machine, Tier
from akashic_daemon.planner.shapes import ModelShape

SPARSE_KEEP_EDGES = 2
"""Blocks that a sparse step reads besides the chosen ones: the first and the newest."""


@dataclass(frozen=True, slots=True)
class Setup:
    """How the model is run. context_tokens: what one sequence sees. sparse_blocks: 0 attends to everything."""

    context_tokens: int
    batch: int = 1
    kv_format: str = "f16"
    sparse_blocks: int = 0
    block_tokens: int = 128

    def __post_init__(self) -> None:
        for name in ("context_tokens", "batch", "block_tokens"):
            if getattr(self, name) < 1:
                raise UsageError(f"planning with {name} = {getattr(self, name)}: it must be at least 1")
        if self.sparse_blocks < 0:
            raise UsageError(f"planning with {self.sparse_blocks} sparse blocks: it must not be negative")
        bytes_per_value(self.kv_format)

    @property
    def is_sparse(self) -> bool:
        """Whether a step leaves anything out."""
        read = (self.sparse_blocks + SPARSE_KEEP_EDGES) * self.block_tokens
        return self.sparse_blocks > 0 and read < self.context_tokens

    @property
    def read_tokens(self) -> int:
        """Tokens whose KV a step reads in one sequence."""
        read = (self.sparse_blocks + SPARSE_KEEP_EDGES) * self.block_tokens
        return min(self.context_tokens, read) if self.is_sparse else self.context_tokens


@dataclass(frozen=True, slots=True)
class Cost:
    """What something takes, part by part, and which limit the largest part is at."""

    parts: dict[str, float]
    limits: dict[str, str]

    @property
    def seconds(self) -> float:
        """The whole time."""
        return sum(self.parts.values())

    @property
    def bound_by(self) -> str:
        """What makes the largest part as long as it is."""
        return self.limits[max(self.parts, key=lambda part: self.parts[part])]


def _slower(by_name: dict[str, float]) -> tuple[float, str]:
    name = max(by_name, key=lambda key: by_name[key])
    return by_name[name], name


def _weights(shape: ModelShape, machine: Machine, flops: float) -> tuple[float, str]:
    """Return what reading the weights and multiplying by them takes, and which of both binds."""
    both = {"weights' bandwidth": shape.step_weight_bytes / machine.stream, "matrix products": flops / machine.flops}
    slower_s, name = _slower(both)
    return (slower_s if machine.overlaps else sum(both.values())), name


def decode_step(shape: ModelShape, machine: Machine, setup: Setup) -> Cost:
    """Return what one step of `batch` sequences takes."""
    flops = 2.0 * (shape.body_parameters + shape.head_parameters) * setup.batch
    weights_s, weights_by = _weights(shape, machine, flops)
    attention_s, attention_by = _slower(
        {
            "KV bandwidth": _kv_read_s(shape, machine, setup),
            "attention arithmetic": shape.attention_flops(setup.batch, setup.read_tokens) / machine.attention_flops,
        }
    )
    parts = {"weights": weights_s, "attention": attention_s, "fixed": shape.layers * machine.layer_s}
    limits = {"weights": weights_by, "attention": attention_by, "fixed": "fixed cost of a step"}
    if setup.is_sparse:
        parts["selection"] = summary_bytes(shape, setup) / machine.kv_stream
        limits["selection"] = "KV bandwidth"
    return Cost(parts, limits)


def _kv_read_s(shape: ModelShape, machine: Machine, setup: Setup) -> float:
    read_bytes = setup.batch * setup.read_tokens * shape.kv_bytes_per_token(setup.kv_format)
    on_chip = min(read_bytes, machine.scratch_bytes) if setup.is_sparse and machine.scratch_stream else 0.0
    return (read_bytes - on_chip) / machine.kv_stream + (on_chip / machine.scratch_stream if on_chip else 0.0)


def summary_bytes(shape: ModelShape, setup: Setup) -> float:
    """Return what the bounds of all blocks' keys take: two vectors of 16-bit values a block, head and layer."""
    blocks = -(-setup.context_tokens // setup.block_tokens)
    return setup.batch * blocks * shape.layers * shape.kv_heads * shape.head_width * 2 * 2.0


def prefill(shape: ModelShape, machine: Machine, new_tokens: int, setup: Setup, *, history_tokens: int = 0) -> Cost:
    """Return what computing `new_tokens` of one sequence takes that follow `history_tokens` with present KV."""
    if new_tokens < 1:
        return Cost({"weights": 0.0}, {"weights": "nothing to compute"})
    flops = 2.0 * (shape.body_parameters * new_tokens + shape.head_parameters)
    weights_s, weights_by = _weights(shape, machine, flops)
    keys = history_tokens + new_tokens / 2
    read_bytes = (history_tokens + new_tokens) * shape.kv_bytes_per_token(setup.kv_format)
    attention_s, attention_by = _slower(
        {
            "attention arithmetic": shape.attention_flops(new_tokens, keys) / machine.attention_flops,
            "KV bandwidth": read_bytes / machine.kv_stream,
        }
    )
    parts = {"weights": weights_s, "attention": attention_s, "fixed": shape.layers * machine.layer_s}
    return Cost(parts, {"weights": weights_by, "attention": attention_by, "fixed": "fixed cost of a step"})


def reload_s(shape: ModelShape, tier: Tier, tokens: int, kv_format: str, *, block_tokens: int = 128) -> float:
    """Return how long the KV of some tokens takes from a tier; every block pays the latency once."""
    blocks = -(-tokens // block_tokens)
    return blocks * tier.latency_s + tokens * shape.kv_bytes_per_token(kv_format) / tier.read_bytes_per_s


def breakeven_tokens(shape: ModelShape, machine: Machine, tier: Tier, setup: Setup) -> int | None:
    """Return from how many tokens on reloading is faster than computing, None if it never is (up to the context)."""
    tokens = 1
    while tokens <= setup.context_tokens:
        took_s = reload_s(shape, tier, tokens, setup.kv_format, block_tokens=setup.block_tokens)
        if took_s <= prefill(shape, machine, tokens, setup).seconds:
            return tokens
        tokens *= 2
    return None


def best_block_tokens(shape: ModelShape, tier: Tier, setup: Setup, choices: Sequence[int] = (16, 32, 64, 128)) -> int:
    """Return the block size that wastes least: its half at the end of each message, and a latency for each block.

    A message is taken to have 256 tokens. A block never crosses a message (DESIGN), so larger ones aren't offered.
    """
    message_tokens = 256
    per_token_s = shape.kv_bytes_per_token(setup.kv_format) / tier.read_bytes_per_s

    def waste_s(block: int) -> float:
        return message_tokens / block * tier.latency_s + block / 2 * per_token_s

    return min(choices, key=waste_s)
