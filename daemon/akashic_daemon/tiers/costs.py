"""What moving and computing KV costs on this machine, as measured: a reload is done only where it is cheaper.

    reload_s  = (ram_bytes + ssd_bytes) x (import_s_per_byte + arena_s_per_byte)
              + (ssd_latency_s + ssd_bytes x ssd_s_per_byte, where ssd_bytes > 0)
    compute_s = tokens x compute_s_per_token
    reload_pays = reload_s <= compute_s

Every cost is a median of the latest measurements, so that one that a busy machine spoilt changes little. What wasn't
measured yet counts nothing, and while computing wasn't measured a reload pays. Costs of reloading are forgotten when
none was measured while a few hundred prefills were: else a bad time would rule reloads out for ever.

They are kept per machine and fingerprint in a JSON file. A broken one is said once and begun anew: nothing but
measurements is lost. All methods may be called on any thread.
"""

from __future__ import annotations

import json
import logging
import os
import platform
from collections import deque
from collections.abc import Iterable
from itertools import combinations
from math import inf
from pathlib import Path
from statistics import median
from threading import Lock
from typing import Any

logger = logging.getLogger("akashic.tiers")
_SAMPLES = 31
_MIN_PREFILL_TOKENS = 32
"""A shorter prefill is mostly the step's own cost, and says nothing of what many tokens take."""
_STALE_AFTER_PREFILLS = 256
_KEPT = 64
"""So many pairs of machine and fingerprint the file remembers."""
_PREFILL, _IMPORT, _ARENA, _SSD = "prefill", "import", "arena_read", "ssd_read"
_RELOADING = (_IMPORT, _ARENA, _SSD)

Sample = tuple[float, float]
"""How much (tokens or bytes), and the seconds that it took."""


def machine_name() -> str:
    """Return what tells this machine from others that may share the file."""
    return f"{platform.node()}|{platform.machine()}|{os.cpu_count()}"


class Costs:
    """Measurements of one machine and fingerprint. `path`: where they are kept; None keeps them in memory."""

    def __init__(self, path: Path | None, fingerprint: str, *, machine: str | None = None) -> None:
        self._path = path
        self._name = f"{machine or machine_name()}|{fingerprint}"
        self._lock = Lock()
        self._samples: dict[str, deque[Sample]] = {
            kind: deque(maxlen=_SAMPLES) for kind in (_PREFILL, _IMPORT, _ARENA, _SSD)
        }
        self._prefills_since_reload = 0
        self._ssd_line: tuple[float, float] | None = None
        known = _load(path).get(self._name) if path is not None else None
        for kind, samples in (known or {}).items():
            if kind in self._samples:
                self._samples[kind].extend(samples)

    # -- measuring ---------------------------------------------------------------------------------------------

    def observe_prefill(self, tokens: int, seconds: float) -> None:
        """Take in a prefill; a short one is left out."""
        if tokens < _MIN_PREFILL_TOKENS:
            return
        self._observe(_PREFILL, tokens, seconds)
        with self._lock:
            self._prefills_since_reload += 1
            if self._prefills_since_reload >= _STALE_AFTER_PREFILLS:
                for kind in _RELOADING:
                    self._samples[kind].clear()
                self._prefills_since_reload, self._ssd_line = 0, None

    def observe_import(self, size_bytes: int, seconds: float) -> None:
        """Take in an import into the engine."""
        self._observe(_IMPORT, size_bytes, seconds)

    def observe_arena_read(self, size_bytes: int, seconds: float) -> None:
        """Take in a copy out of the RAM tier."""
        self._observe(_ARENA, size_bytes, seconds)

    def observe_ssd_read(self, size_bytes: int, seconds: float) -> None:
        """Take in a read from the SSD tier, its verification included."""
        self._observe(_SSD, size_bytes, seconds)

    def _observe(self, kind: str, amount: float, seconds: float) -> None:
        if amount <= 0 or seconds < 0:
            return
        with self._lock:
            self._samples[kind].append((float(amount), float(seconds)))
            if kind in _RELOADING:
                self._prefills_since_reload = 0
            if kind == _SSD:
                self._ssd_line = None

    # -- asking ------------------------------------------------------------------------------------------------

    @property
    def compute_s_per_token(self) -> float | None:
        """What computing a token of a prefill takes."""
        return self._per_unit(_PREFILL)

    @property
    def import_s_per_byte(self) -> float | None:
        """What importing a byte into the engine takes."""
        return self._per_unit(_IMPORT)

    @property
    def arena_s_per_byte(self) -> float | None:
        """What copying a byte out of the RAM tier takes."""
        return self._per_unit(_ARENA)

    @property
    def ssd_s_per_byte(self) -> float | None:
        """What reading one more byte from the SSD tier takes."""
        line = self._ssd()
        return line[1] if line else None

    @property
    def ssd_latency_s(self) -> float | None:
        """What a read from the SSD tier takes besides its bytes."""
        line = self._ssd()
        return line[0] if line else None

    def reload_s(self, ram_bytes: int, ssd_bytes: int) -> float:
        """Return how long it takes to bring so many bytes of each tier into the engine."""
        each = (self.import_s_per_byte or 0.0) + (self.arena_s_per_byte or 0.0)
        latency_s, per_byte_s = self._ssd() or (0.0, 0.0)
        from_disk_s = latency_s + ssd_bytes * per_byte_s if ssd_bytes else 0.0
        return (ram_bytes + ssd_bytes) * each + from_disk_s

    def reload_pays(self, tokens: int, ram_bytes: int, ssd_bytes: int) -> bool:
        """Tell if reloading the KV of some tokens takes no longer than computing them; the formula stands above."""
        per_token_s = self.compute_s_per_token
        return per_token_s is None or self.reload_s(ram_bytes, ssd_bytes) <= tokens * per_token_s

    def _per_unit(self, kind: str) -> float | None:
        with self._lock:
            samples = list(self._samples[kind])
        return median(seconds / amount for amount, seconds in samples) if samples else None

    def _ssd(self) -> tuple[float, float] | None:
        with self._lock:
            if self._ssd_line is None and self._samples[_SSD]:
                self._ssd_line = _line(self._samples[_SSD])
            return self._ssd_line

    # -- keeping -----------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write the measurements into the file, besides those of other machines and fingerprints. Never raises."""
        if self._path is None:
            return
        with self._lock:
            mine = {kind: list(samples) for kind, samples in self._samples.items() if samples}
        known = _load(self._path)
        known.pop(self._name, None)
        known[self._name] = mine
        temporary = self._path.with_suffix(f".{os.getpid()}")
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary.write_text(json.dumps(dict(list(known.items())[-_KEPT:])), "utf-8")
            temporary.replace(self._path)
        except OSError as error:
            logger.warning("measured costs can't be kept in %s: %s", self._path, error.strerror or error)


def _line(samples: Iterable[Sample]) -> tuple[float, float]:
    """Return intercept and slope, neither below 0, of the median line through measurements (Theil and Sen)."""
    held = list(samples)
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(held, 2) if a[0] != b[0]]
    slope = median(slopes) if slopes else 0.0
    if slope <= 0:  # all of one size, or noise: the bytes are taken to cost everything
        return 0.0, median(seconds / amount for amount, seconds in held)
    return max(0.0, median(seconds - slope * amount for amount, seconds in held)), slope


def _load(path: Path) -> dict[str, dict[str, list[Sample]]]:
    try:
        found = json.loads(path.read_text("utf-8"))
        return {str(name): _samples(kinds) for name, kinds in found.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        logger.warning("the measured costs in %s can't be read and are measured anew: %s", path, error)
        return {}


def _samples(kinds: Any) -> dict[str, list[Sample]]:
    out: dict[str, list[Sample]] = {}
    for kind, samples in kinds.items():
        out[str(kind)] = [(float(amount), float(seconds)) for amount, seconds in samples]
        if any(not (0 < amount < inf and 0 <= seconds < inf) for amount, seconds in out[str(kind)]):
            raise ValueError("an amount or a time that can't be")
    return out
