"""What the daemon is as a process: the code that it runs and the memory that it has.

Code is known by a digest of the installed files: a version alone doesn't tell a daemon from before an upgrade.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import xxhash

_PACKAGES = ("akashic_daemon", "akashic_kernels")
_SUFFIXES = frozenset({".py", ".lark", ".policy"})


@cache
def code_digest() -> str:
    """Return the digest of the daemon's files as they were at the first call in this process; a daemon asks at its start."""
    specs = [importlib.util.find_spec(name) for name in _PACKAGES]
    return digest_of(Path(place) for spec in specs if spec for place in spec.submodule_search_locations or ())


def digest_of(folders: Iterable[Path]) -> str:
    """Return a digest of the names and contents of all code below folders; not of where these are, nor of times."""
    found = xxhash.xxh3_128()
    for folder in folders:
        for file in sorted(f for f in folder.rglob("*") if f.suffix in _SUFFIXES):
            found.update(f"{folder.name}/{file.relative_to(folder).as_posix()}\0".encode())
            try:
                data = file.read_bytes()
            except OSError as error:  # it is being replaced: another code either way
                data = str(error.errno).encode()
            found.update(f"{len(data)}\0".encode() + data)
    return found.hexdigest()


def resident_bytes() -> int:
    """Return how much memory this process has; 0 where the system doesn't tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
