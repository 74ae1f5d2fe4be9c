"""From timed points of a real engine to a machine's rates, and how far the model is off at the points not used for that.

A point is (kind, new tokens, history tokens, sequences, seconds). Four fit the four rates, one each: a decode step and a
prefill with next to no history give the weights' and the products' rates; the same with a long history attention's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from akashic_daemon.errors import EngineError
from akashic_daemon.planner.machines import Machine
from akashic_daemon.planner.roofline import Setup, decode_step, prefill
from akashic_daemon.planner.shapes import ModelShape

_FASTEST = 1e18
_LEAST_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class Point:
    """What was timed: a prefill of `new_tokens`, or a decode step (`new_tokens` is 1) of `sequences`."""

    kind: str
    new_tokens: int
    history_tokens: int
    sequences: int
    seconds: float
    is_fitted: bool = False

    def predicted_s(self, shape: ModelShape, machine: Machine, kv_format: str) -> float:
        """Return what the model says this takes."""
        setup = Setup(self.history_tokens + self.new_tokens, self.sequences, kv_format)
        if self.kind == "decode":
            return decode_step(shape, machine, setup).seconds
        return prefill(shape, machine, self.new_tokens, setup, history_tokens=self.history_tokens).seconds

    def __str__(self) -> str:
        if self.kind == "decode":
            each = "" if self.sequences == 1 else f", {self.sequences} sequences"
            return f"decode at {self.history_tokens:,}{each}"
        return f"prefill {self.new_tokens:,} after {self.history_tokens:,}"


def fit(shape: ModelShape, base: Machine, points: Sequence[Point], kv_format: str) -> Machine:
    """Return `base` with the rates that its fitted points show. Raises EngineError when one lacks."""
    fitted = [point for point in points if point.is_fitted]
    decodes = sorted((p for p in fitted if p.kind == "decode"), key=lambda p: p.history_tokens)
    prefills = sorted((p for p in fitted if p.kind == "prefill"), key=lambda p: p.history_tokens)
    if len(decodes) < 2 or len(prefills) < 2:
        raise EngineError(
            f"fitting the rates of this machine: {len(decodes)} decode and {len(prefills)} prefill points, 2 each are needed"
        )
    free = replace(base, stream=_FASTEST, kv_stream=_FASTEST, flops=_FASTEST, attention_flops=_FASTEST, layer_s=0.0)
    machine = free
    # Short ones first; attention's part of them is small, so a second round settles it.
    for _ in range(3):
        machine = replace(machine, stream=shape.step_weight_bytes / _rest(shape, machine, decodes[0], kv_format))
        machine = replace(machine, kv_stream=_kv_stream(shape, machine, decodes[-1], kv_format))
        machine = replace(machine, flops=_flops(shape, machine, prefills[0], kv_format))
        machine = replace(machine, attention_flops=_attention_flops(shape, machine, prefills[-1], kv_format))
    return replace(machine, origin="fitted to this machine's engine")


def _rest(shape: ModelShape, machine: Machine, point: Point, kv_format: str) -> float:
    """Return the point's time without the attention that the model expects."""
    without = replace(machine, stream=_FASTEST, flops=_FASTEST)
    return max(_LEAST_SHARE * point.seconds, point.seconds - point.predicted_s(shape, without, kv_format))


def _kv_stream(shape: ModelShape, machine: Machine, point: Point, kv_format: str) -> float:
    linear = replace(machine, kv_stream=_FASTEST, attention_flops=_FASTEST)
    left = max(_LEAST_SHARE * point.seconds, point.seconds - point.predicted_s(shape, linear, kv_format))
    read = point.sequences * (point.history_tokens + point.new_tokens) * shape.kv_bytes_per_token(kv_format)
    return read / left


def _flops(shape: ModelShape, machine: Machine, point: Point, kv_format: str) -> float:
    flops = 2.0 * (shape.body_parameters * point.new_tokens + shape.head_parameters)
    return flops / _rest(shape, machine, point, kv_format)


def _attention_flops(shape: ModelShape, machine: Machine, point: Point, kv_format: str) -> float:
    linear = replace(machine, kv_stream=_FASTEST, attention_flops=_FASTEST)
    left = max(_LEAST_SHARE * point.seconds, point.seconds - point.predicted_s(shape, linear, kv_format))
    return shape.attention_flops(point.new_tokens, point.history_tokens + point.new_tokens / 2) / left


def errors(shape: ModelShape, machine: Machine, points: Sequence[Point], kv_format: str) -> list[dict[str, Any]]:
    """Return every point with what the model says of it; speeds in tokens a second."""
    rows = []
    for point in points:
        said_s = point.predicted_s(shape, machine, kv_format)
        tokens = point.sequences * point.new_tokens
        rows.append(
            {
                "source": "fitted" if point.is_fitted else "held out",
                "what": str(point),
                "measured": tokens / point.seconds,
                "predicted": tokens / said_s,
                "error": point.seconds / said_s - 1,
                "unit": "tok/s",
            }
        )
    return rows
