"""Machines as rates: described ones, and the file form of a measured one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from akashic_daemon.errors import UsageError

GB, TB = 10**9, 10**12
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Tier:
    """A memory that may hold KV: its size, and how fast it is read into the memory that computes."""

    name: str
    size_bytes: float
    read_bytes_per_s: float
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Machine:
    """What computes, and from where. Rates are reached ones, not those of data sheets.

    memory: what weights and the KV of running requests are in. stream: bytes of weights read a second. kv_stream: the same
    of KV, in attention. flops: of matrix products. attention_flops: of attention in prefill. layer_s: what a layer costs a
    step besides (launches, barriers). scratch_bytes: on-chip memory that KV may stay in between steps. tiers: below memory.
    price_per_hour: of the machine, 0 when unknown. origin: where the rates come from, for people. overlaps: weights are
    read while products are computed, so the slower of both counts; without it, as on most CPUs, they add up.
    """

    name: str
    memory_bytes: float
    stream: float
    kv_stream: float
    flops: float
    attention_flops: float
    layer_s: float
    tiers: tuple[Tier, ...]
    price_per_hour: float = 0.0
    scratch_bytes: float = 0.0
    scratch_stream: float = 0.0
    origin: str = "described"
    overlaps: bool = True

    def tier(self, name: str) -> Tier | None:
        """Return a tier by name."""
        return next((tier for tier in self.tiers if tier.name == name), None)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)

    def with_cache_budget(self, memory_bytes: float) -> Machine:
        """Return the machine as if it had less memory."""
        return replace(self, memory_bytes=min(memory_bytes, self.memory_bytes))


def from_json(values: Mapping[str, Any]) -> Machine:
    """Return the machine that `to_json` described. Raises UsageError."""
    try:
        tiers = tuple(Tier(**tier) for tier in values["tiers"])
        machine = Machine(**{**values, "tiers": tiers})
    except (KeyError, TypeError) as error:
        raise UsageError(
            f"reading the description of a machine: {error}",
            hint="`akashic bench plan --show-machine` prints a whole one",
        ) from error
    rates = (machine.memory_bytes, machine.stream, machine.kv_stream, machine.flops, machine.attention_flops)
    if not all(isinstance(rate, (int, float)) and rate > 0 for rate in rates):
        raise UsageError(f"reading the machine {machine.name}: sizes and rates must be numbers above 0")
    return machine


def _gpu(
    name: str, memory_gib: float, stream: float, flops: float, link: float, price: float, layer_s: float = 22e-6
) -> Machine:
    """Return a card in a workstation: RAM behind the link, an SSD behind RAM."""
    tiers = (Tier("ram", 128 * GIB, link, 20e-6), Tier("ssd", TB, min(link, 3.5 * GB), 100e-6))
    return Machine(
        name, memory_gib * GIB, stream, stream, 0.55 * flops, 0.4 * flops, layer_s, tiers, price, origin="data sheet"
    )


DESCRIBED = {
    # Bandwidths at what copies reach, about 0.88 of the data sheets' ones; prices of clouds are rough: give your own.
    # 22 us a layer is what the torch engine's dense decode on an H200 leaves over the ceiling (README).
    "h200": _gpu("h200", 140, 4.2 * TB, 989e12, 54 * GB, 3.5),
    "h100": _gpu("h100", 80, 2.95 * TB, 989e12, 54 * GB, 2.5),
    "a100": _gpu("a100", 80, 1.8 * TB, 312e12, 24 * GB, 1.5),
    "a100-40g": _gpu("a100-40g", 40, 1.37 * TB, 312e12, 24 * GB, 1.2),
    "rtx-4090": _gpu("rtx-4090", 24, 0.9 * TB, 165e12, 24 * GB, 0.4),
    "rtx-3090": _gpu("rtx-3090", 24, 0.82 * TB, 71e12, 24 * GB, 0.2),
    # A device as PLENA draws it: on-chip memory that a sparse step's blocks may stay in, wide tiers below.
    "plena-like": Machine(
        "plena-like",
        80 * GIB,
        2.0 * TB,
        2.0 * TB,
        200e12,
        160e12,
        5e-6,
        (Tier("ram", 256 * GIB, 100 * GB, 2e-6), Tier("ssd", 4 * TB, 7 * GB, 80e-6)),
        scratch_bytes=256 * (1 << 20),
        scratch_stream=20 * TB,
        origin="assumed: no such device was measured",
    ),
}


def described(name: str) -> Machine:
    """Return a described machine. Raises UsageError."""
    found = DESCRIBED.get(name.lower())
    if found is None:
        raise UsageError(
            f"planning for the machine {name!r}: it is unknown",
            hint=f"`here`, a JSON file, or one of {', '.join(DESCRIBED)}",
        )
    return found
