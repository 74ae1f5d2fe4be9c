"""How many threads a step may use, following what other programs leave free.

llama.cpp's and OpenMP's threads meet at a spinning barrier after every operation. When one of them shares its core with a compiler,
all wait for it at each barrier, and two threads become far slower than one. So we use only the cores that are idle.
"""

from __future__ import annotations

import os
from pathlib import Path

from akashic_daemon.types import Clock, SystemClock

_WINDOW_S = 0.2
_BUSY_SHARE = 0.4
"""A core counts as taken when others use more than this much of it."""
_SLOW_FACTOR = 4.0
"""A step so much slower than its kind means that we collided with somebody: react at once."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def read_machine_busy_s(stat: Path = Path("/proc/stat")) -> float:
    """Return the seconds that all cores together have been busy since boot; 0 where that can't be read."""
    try:
        with stat.open() as file:
            fields = [int(x) for x in file.readline().split()[1:]]
    except (OSError, ValueError):
        return 0.0
    user, nice, system, _idle, _iowait, irq, softirq = fields[:7]
    return (user + nice + system + irq + softirq) / _TICKS_PER_S


class LoadFollower:
    """Chooses the thread count for the next step from the load that isn't ours."""

    def __init__(self, cores: int, *, fixed: int = 0, clock: Clock | None = None) -> None:
        self._cores = max(1, cores)
        self._fixed = fixed
        self._clock = clock or SystemClock()
        self._at_s = self._clock.monotonic_s()
        self._machine_s = read_machine_busy_s()
        self._own_s = sum(os.times()[:2])
        self._typical_s: float | None = None
        self.threads = fixed or self._cores

    def next_step(self) -> int:
        """Return the thread count to use now; looks at the machine at most five times a second."""
        if self._fixed:
            return self._fixed
        now_s = self._clock.monotonic_s()
        passed_s = now_s - self._at_s
        if passed_s >= _WINDOW_S:
            machine_s, own_s = read_machine_busy_s(), sum(os.times()[:2])
            others = (machine_s - self._machine_s - (own_s - self._own_s)) / passed_s
            self._at_s, self._machine_s, self._own_s = now_s, machine_s, own_s
            self.threads = self.threads_for(others)
        return self.threads

    def threads_for(self, others_cores: float) -> int:
        """Return the threads that fit beside programs using `others_cores` cores."""
        taken = int(others_cores + 1.0 - _BUSY_SHARE) if others_cores > 0 else 0
        return max(1, self._cores - taken)

    def observe(self, step_s: float, *, single_tokens: bool) -> None:
        """Learn how long a decode step took; a sudden slow one lowers the count before the next look."""
        if self._fixed or not single_tokens:
            return
        if self._typical_s is None:
            self._typical_s = step_s
        elif step_s > _SLOW_FACTOR * self._typical_s and self.threads > 1:
            self.threads -= 1
            self._at_s = self._clock.monotonic_s()
            self._machine_s, self._own_s = read_machine_busy_s(), sum(os.times()[:2])
        else:
            self._typical_s += 0.1 * (step_s - self._typical_s)
