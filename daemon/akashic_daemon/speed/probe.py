"""What this machine's memory, cores and disk reach, in a second or two; knows no engine.

The rates are those of numpy and of plain files: bounds for an engine, not its speed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import NamedTemporaryFile

import numpy as np

from akashic_daemon.errors import StoreUnwritable
from akashic_daemon.planner.machines import Machine, Tier

_COPIED_BYTES = 128 << 20
_MATRIX = 768
_FILE_BYTES = 64 << 20
_REPEATS = 5
_STREAM_SHARE = 0.5
_PRODUCT_SHARE = 0.3
"""What a quantised engine reached of a plain copy and of float32 products, until it is fitted."""


def probe(folder: Path) -> Machine:
    """Measure, the disk in `folder`, and return the machine with shares of what was reached. Raises StoreUnwritable."""
    copied = _copy_rate()
    product = _product_rate()
    memory = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    disk, latency_s = _disk_rate(folder)
    stream = _STREAM_SHARE * copied
    flops = _PRODUCT_SHARE * product
    return Machine(
        "here",
        memory,
        stream,
        stream,
        flops,
        flops,
        0.0,
        (Tier("ram", memory / 2, copied / 2), Tier("ssd", _free_bytes(folder), disk, latency_s)),
        origin="probed: copies and matrix products of numpy, not yet fitted to the engine",
    )


def _best(work: Callable[[], object]) -> float:
    """Return the least of several times: what else runs here only adds."""
    times = []
    for _ in range(_REPEATS):
        started_s = time.perf_counter()
        work()
        times.append(time.perf_counter() - started_s)
    return max(min(times), 1e-9)


def _copy_rate() -> float:
    """Return bytes read and written a second."""
    source = np.ones(_COPIED_BYTES // 8)
    target = np.empty_like(source)
    return 2 * _COPIED_BYTES / _best(lambda: np.copyto(target, source))


def _product_rate() -> float:
    matrix = np.ones((_MATRIX, _MATRIX), np.float32)
    target = np.empty_like(matrix)
    return float(2 * _MATRIX**3 / _best(lambda: np.matmul(matrix, matrix, out=target)))


def _disk_rate(folder: Path) -> tuple[float, float]:
    """Return bytes a second and the latency of a small read, from a file whose pages were let go of."""
    try:
        with NamedTemporaryFile(dir=folder, prefix="probe-") as file:
            file.write(os.urandom(1 << 20) * (_FILE_BYTES >> 20))
            file.flush()
            os.fsync(file.fileno())
            whole_s = _read_s(file.fileno(), 0, _FILE_BYTES)
            small_s = min(_read_s(file.fileno(), at << 20, 4096) for at in range(0, _FILE_BYTES >> 20, 8))
    except OSError as error:
        raise StoreUnwritable(
            f"measuring the disk of {folder}: {error.strerror or error}", hint="free 64 MiB there"
        ) from error
    return _FILE_BYTES / whole_s, small_s


def _read_s(descriptor: int, at: int, size: int) -> float:
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    started_s = time.perf_counter()
    done = 0
    while done < size:
        piece = os.pread(descriptor, min(size - done, 4 << 20), at + done)
        if not piece:
            break
        done += len(piece)
    return max(time.perf_counter() - started_s, 1e-9)


def _free_bytes(folder: Path) -> float:
    found = os.statvfs(folder)
    return float(found.f_bavail * found.f_frsize)
