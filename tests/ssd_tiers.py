"""The SSD tier in tests: clocks that are set apart, blocks, and what the tier has."""

from __future__ import annotations

from pathlib import Path

from akashic_daemon.store.blocks.record import Found, MissReason
from akashic_daemon.tiers.ssd import Outgoing, SsdTier, open_ssd
from block_stores import CountingFiles, payload

SIZE = 20_000
BUDGET = 1 << 20


class TwoClocks:
    """The wall's time and the monotonic one, set apart."""

    def __init__(self) -> None:
        self.wall, self.steady = 1_000_000.0, 50.0

    def now_s(self) -> float:
        return self.wall

    def monotonic_s(self) -> float:
        return self.steady

    def pass_s(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds


def open_tier(folder: Path, clock: TwoClocks, *, budget: int = BUDGET, daily: int = 1 << 30) -> SsdTier:
    return open_ssd(folder, budget, daily, clock, CountingFiles())


def block(key: str, group: str = "g", sequence: int = 0, size: int = SIZE, fingerprint: str = "fp") -> Outgoing:
    return Outgoing(key, f"label of {key}".encode(), group, sequence, fingerprint, payload(key, size))


def blocks(group: str, count: int, *, first: int = 0, size: int = SIZE) -> list[Outgoing]:
    return [block(f"{group}{n}", group, n, size) for n in range(first, first + count)]


def fresh(_key: str, size: int) -> memoryview:
    return memoryview(bytearray(size))


def found(tier: SsdTier, keys: list[str]) -> dict[str, bytes | MissReason]:
    out: dict[str, bytes | MissReason] = {}
    for one in tier.read(keys, fresh):
        if isinstance(one, Found):
            out[one.entry.key] = bytes(one.payload)
        else:
            out[one.key] = one.reason
    return out


def have(tier: SsdTier, fingerprint: str = "fp") -> list[str]:
    return [one.key for one in tier.labels(fingerprint)]
