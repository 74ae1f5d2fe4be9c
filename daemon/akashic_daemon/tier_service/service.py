"""The tiers below the engine, as the rest of the daemon sees them: budgets, the mover's life, upkeep and figures.

Async like `service`; what touches the block store runs on the mover's thread, what touches the engine on the engine's.
A tier that can't be used is left out, and `problems` says so for `status`: the daemon goes on without it.
"""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

from akashic_daemon.config import Config
from akashic_daemon.engine.base import Engine
from akashic_daemon.paths import Paths
from akashic_daemon.schedule.tiering import TierSettings
from akashic_daemon.tiers.budgets import Budgets, Machine, check_budgets, resolve
from akashic_daemon.tiers.costs import Costs
from akashic_daemon.tiers.mover import Mover
from akashic_daemon.tiers.pending import PendingRemovals
from akashic_daemon.tiers.ssd import SsdTier, open_ssd, tier_problem
from akashic_daemon.types import SystemClock

logger = logging.getLogger("akashic.tiers")


class TierService:
    """Owns the mover. Raises ConfigError for budgets that are larger than the machine."""

    def __init__(self, config: Config, paths: Paths) -> None:
        self._config = config
        self._paths = paths
        self._machine = _machine(paths)
        self.budgets = resolve(config.cache, self._machine)
        check_budgets(self.budgets, self._machine)
        self.pending = PendingRemovals(paths.pending_removals)
        self.mover = Mover(self._open_ssd if self.budgets.ssd_bytes else None)
        self.settings = TierSettings(
            ram_bytes_beside=self._ram_bytes_beside,
            storage=config.cache.kv_storage,
            make_costs=lambda fingerprint: Costs(paths.tier_costs, fingerprint),
        )

    @property
    def is_wanted(self) -> bool:
        """Whether any tier is configured."""
        return bool(self.budgets.ram_bytes or self.budgets.ssd_bytes)

    def start(self) -> None:
        """Start the mover, which opens the SSD tier."""
        self.mover.start()

    def stop(self, timeout_s: float) -> bool:
        """Write what waits and close the store. False when that took too long."""
        return self.mover.stop(timeout_s)

    def problems(self) -> list[str]:
        """Say which tiers don't work, one sentence each."""
        problem = self.mover.problem
        return [tier_problem(problem)] if problem is not None else []

    def why_not_removed(self) -> str:
        """Say why a removed session's KV may still be on the disk; empty when it can't be."""
        if self.mover.ssd is not None or not self._paths.block_index.exists():
            return ""
        why = "; ".join(self.problems()) or "the SSD tier is off"
        return f"{why}; it goes when the tier is on again"

    def _open_ssd(self) -> SsdTier:
        tier = open_ssd(
            self._paths.store_dir, self.budgets.ssd_bytes, self.budgets.ssd_daily_write_bytes, SystemClock()
        )
        self.pending.carry_out(tier)
        return tier

    def _ram_bytes_beside(self, engine: Engine) -> int:
        """Return what the RAM tier may take beside a loaded model. Raises ConfigError when a set budget doesn't fit."""
        host_bytes = int(getattr(engine, "host_bytes", engine.model.size_bytes + engine.model.kv_bytes))
        budgets: Budgets = resolve(self._config.cache, self._machine, model_bytes=host_bytes)
        check_budgets(budgets, self._machine, model_bytes=host_bytes)
        return budgets.ram_bytes


def _machine(paths: Paths) -> Machine:
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    folder: Path = paths.store_dir
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        free_bytes = shutil.disk_usage(folder).free
        used_bytes = sum(p.stat().st_size for p in (paths.store_dir / "extents").glob("*") if p.is_file())
    except OSError as error:
        logger.warning("the free space of %s isn't known: %s", folder, error)
        free_bytes = used_bytes = 0
    return Machine(memory_bytes, free_bytes, used_bytes)
