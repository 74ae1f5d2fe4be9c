"""What the tiers may take: the meaning of "auto", and whether a budget is larger than the machine. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from akashic_daemon.config import CacheSection
from akashic_daemon.errors import ConfigError

_GIB = 1 << 30
PROCESS_BYTES = 250_000_000
"""What the daemon itself takes besides the model, its KV and the RAM tier."""
AUTO_RAM_SHARE = 8
AUTO_RAM_MOST_BYTES = 8 * _GIB
AUTO_SSD_SHARE = 10
AUTO_SSD_MOST_BYTES = 32 * _GIB
AUTO_DAILY_WRITES = 4


@dataclass(frozen=True, slots=True)
class Machine:
    """What there is to share out. `ssd_used_bytes`: what our store takes already; it isn't in `disk_free_bytes`."""

    memory_bytes: int
    disk_free_bytes: int
    ssd_used_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Budgets:
    """The bytes that the tiers may take, and that may be written in a day. 0: no such tier."""

    ram_bytes: int
    ssd_bytes: int
    ssd_daily_write_bytes: int


def resolve(cache: CacheSection, machine: Machine, *, kv_bytes: int = 0, model_bytes: int = 0) -> Budgets:
    """Return the budgets that the settings mean on a machine. What is "auto" always fits beside the model."""
    left_bytes = machine.memory_bytes - kv_bytes - model_bytes - PROCESS_BYTES
    ram_bytes = min(machine.memory_bytes // AUTO_RAM_SHARE, AUTO_RAM_MOST_BYTES, left_bytes)
    room_bytes = machine.disk_free_bytes + machine.ssd_used_bytes
    ssd_bytes = _or_auto(cache.ssd_bytes, min(room_bytes // AUTO_SSD_SHARE, AUTO_SSD_MOST_BYTES))
    daily_bytes = _or_auto(cache.ssd_daily_write_bytes, AUTO_DAILY_WRITES * ssd_bytes)
    return Budgets(_or_auto(cache.ram_bytes, max(0, ram_bytes)), ssd_bytes, daily_bytes)


def _or_auto(setting: int | Literal["auto"], auto: int) -> int:
    return auto if setting == "auto" else setting


def check_budgets(budgets: Budgets, machine: Machine, *, kv_bytes: int = 0, model_bytes: int = 0) -> None:
    """Refuse budgets that the machine can't hold. Raises ConfigError, with the numbers and what would fit.

    kv_bytes, model_bytes: of the host's memory; 0 where they are on a GPU.
    """
    beside_bytes = kv_bytes + model_bytes + PROCESS_BYTES
    if budgets.ram_bytes and budgets.ram_bytes + beside_bytes > machine.memory_bytes:
        raise ConfigError(
            f"reserving the RAM tier: cache.ram_bytes is {_gib(budgets.ram_bytes)}, the model takes "
            f"{_gib(model_bytes)}, its KV {_gib(kv_bytes)} and the daemon {_gib(PROCESS_BYTES)}, but the machine has "
            f"{_gib(machine.memory_bytes)}",
            hint=_at_most("ram", machine.memory_bytes - beside_bytes),
        )
    room_bytes = machine.disk_free_bytes + machine.ssd_used_bytes
    if budgets.ssd_bytes > room_bytes:
        raise ConfigError(
            f"reserving the SSD tier: cache.ssd_bytes is {_gib(budgets.ssd_bytes)}, but the disk has "
            f"{_gib(machine.disk_free_bytes)} free and the tier takes {_gib(machine.ssd_used_bytes)} already",
            hint=_at_most("ssd", room_bytes),
        )


def _at_most(tier: str, size_bytes: int) -> str:
    whole_mib = max(0, size_bytes) >> 20
    return f"set cache.{tier}_bytes to {whole_mib}MiB or less, to auto, or to 0 for none"


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / _GIB:.2f} GiB"
