"""From timed points of a real engine to a machine's rates, and how far the model is off at the points not used for that.

A point is (kind, new tokens, history tokens, sequences, seconds). Four fit the four rates, one each: a decode step and a
prefill with next to no history give the weights' and the products' rates; the same with a long history attention's. A fifth
one, a step of several sequences, tells whether reading and computing overlap.
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
_ROUNDS = 30


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
            return f"decode after {self.history_tokens:,} tokens{each}"
        return f"prefill of {self.new_tokens:,} tokens after {self.history_tokens:,}"


def fit(shape: ModelShape, base: Machine, points: Sequence[Point], kv_format: str) -> Machine:
    """Return `base` with the rates that its fitted points show. Raises EngineError when one lacks."""
    fitted = [point for point in points if point.is_fitted]
    decodes = sorted((p for p in fitted if p.kind == "decode" and p.sequences == 1), key=lambda p: p.history_tokens)
    prefills = sorted((p for p in fitted if p.kind == "prefill"), key=lambda p: p.history_tokens)
    if len(decodes) < 2 or len(prefills) < 2:
        raise EngineError(
            f"fitting the rates of this machine: {len(decodes)} decode and {len(prefills)} prefill points, 2 each are needed",
            hint="the model's window may be too short, or the machine too slow for the time that there is",
        )
    several = [point for point in fitted if point.sequences > 1]
    ways = [_Fit(shape, kv_format, decodes, prefills).run(base, overlaps=way) for way in (True, False)]
    if not several:
        return ways[0]

    def off(machine: Machine) -> float:
        return sum(abs(p.predicted_s(shape, machine, kv_format) - p.seconds) for p in several)

    return min(ways, key=off)


@dataclass(frozen=True, slots=True)
class _Fit:
    """One fit. Shortest histories stand first."""

    shape: ModelShape
    kv_format: str
    decodes: Sequence[Point]
    prefills: Sequence[Point]

    def run(self, base: Machine, *, overlaps: bool) -> Machine:
        """Return the machine with fitted rates."""
        machine = replace(
            base,
            stream=_FASTEST,
            kv_stream=_FASTEST,
            flops=_FASTEST,
            attention_flops=_FASTEST,
            layer_s=0.0,
            overlaps=overlaps,
        )
        shape, read, first, late = self.shape, self.decodes[-1], self.prefills[0], self.prefills[-1]
        kv_bytes = read.sequences * (read.history_tokens + read.new_tokens) * shape.kv_bytes_per_token(self.kv_format)
        products = 2.0 * (shape.body_parameters * first.new_tokens + shape.head_parameters)
        attention = shape.attention_flops(late.new_tokens, late.history_tokens + late.new_tokens / 2)
        # What is slower of two hides the other, so the other counts for nothing in what is left of a point.
        weights = ("stream", "flops") if overlaps else None
        # Each rate takes what the others leave of its point; some rounds settle them.
        for _ in range(_ROUNDS):
            left_s = self._left_s(machine, self.decodes[0], weights or ("stream",))
            machine = replace(machine, stream=shape.step_weight_bytes / left_s)
            machine = replace(
                machine, kv_stream=kv_bytes / self._left_s(machine, read, ("kv_stream", "attention_flops"))
            )
            machine = replace(machine, flops=products / self._left_s(machine, first, weights or ("flops",)))
            left_s = self._left_s(machine, late, ("kv_stream", "attention_flops"))
            machine = replace(machine, attention_flops=attention / left_s)
        return replace(machine, origin="fitted to this machine's engine")

    def _left_s(self, machine: Machine, point: Point, rates: Sequence[str]) -> float:
        """Return what is left of a point's time when these rates were without end."""
        endless: dict[str, Any] = dict.fromkeys(rates, _FASTEST)
        without = replace(machine, **endless)
        left_s = point.seconds - point.predicted_s(self.shape, without, self.kv_format)
        return max(_LEAST_SHARE * point.seconds, left_s)


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
