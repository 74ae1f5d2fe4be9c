"""Whether the folders that akashic owns can be used: settings, who may read them, room, speed, whole databases."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from akashic_cli.doctor.finding import Finding, Level
from akashic_cli.render.units import size
from akashic_daemon.config import load
from akashic_daemon.errors import AkashicError
from akashic_daemon.paths import Paths

LOW_DISK_BYTES = 2 << 30
FULL_DISK_BYTES = 100 << 20
SLOW_DISK_BYTES_PER_S = 100 << 20
"""Reading KV back is slower than computing it on many machines then."""
_PROBE_BYTES = 32 << 20
_PROBE_TIMEOUT_S = 60.0
MAX_SOCKET_PATH_BYTES = 103 if sys.platform == "darwin" else 107
"""What the kernel's `sun_path` holds, less its final zero."""

# In a process of its own, for the CLI touches no SQLite: version, newest known, and what the database says of itself.
_DATABASE_PROBE = """
import json, sqlite3, sys
from pathlib import Path
from akashic_daemon.store.migrations import MIGRATIONS
out = {"newest": len(MIGRATIONS), "version": 0, "problem": ""}
try:
    with sqlite3.connect(Path(sys.argv[1]).absolute().as_uri() + "?mode=ro", uri=True) as c:
        out["version"] = c.execute("PRAGMA user_version").fetchone()[0]
        said = c.execute("PRAGMA quick_check(1)").fetchone()[0]
        out["problem"] = "" if said == "ok" else said
except sqlite3.Error as error:
    out["problem"] = str(error)
print(json.dumps(out))
"""


def check_settings(paths: Paths) -> Finding:
    """Tell if file and environment hold valid settings."""
    try:
        load(paths.config_file)
    except AkashicError as error:
        return Finding("settings", Level.FAIL, error.message, error.hint or "")
    state = str(paths.config_file) if os.path.exists(paths.config_file) else f"defaults; no {paths.config_file}"
    return Finding("settings", Level.OK, f"settings are valid ({state})")


def check_socket_folder(paths: Paths) -> Finding:
    """Tell if the socket's folder is private, and its path short enough for the kernel."""
    folder = paths.runtime_dir
    if len(str(paths.socket).encode()) > MAX_SOCKET_PATH_BYTES:
        text = f"the socket's path is longer than {MAX_SOCKET_PATH_BYTES} bytes: {paths.socket}"
        return Finding("socket_folder", Level.FAIL, text, "set AKASHIC_HOME to a shorter path")
    try:
        mode = folder.stat().st_mode & 0o777
    except FileNotFoundError:
        return Finding("socket_folder", Level.OK, f"{folder} will be made, private, by the daemon")
    except OSError as error:
        return Finding("socket_folder", Level.FAIL, f"{folder}: {error.strerror}", "fix its permissions")
    if mode & 0o077:
        return Finding(
            "socket_folder", Level.FAIL, f"{folder} has mode {mode:04o}: others may get in", f"chmod 700 {folder}"
        )
    return Finding("socket_folder", Level.OK, f"{folder} is private")


def check_disk(paths: Paths) -> Finding:
    """Tell how much room the store has."""
    folder = _nearest(paths.store_dir)
    try:
        free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        return Finding("disk", Level.FAIL, f"{folder}: {error.strerror}", "set AKASHIC_HOME to a folder you can use")
    text = f"{free_bytes / (1 << 30):.1f} GiB free for {paths.store_dir}"
    if free_bytes < FULL_DISK_BYTES:
        return Finding("disk", Level.FAIL, text, "free space, or set AKASHIC_HOME to another disk")
    if free_bytes < LOW_DISK_BYTES:
        return Finding("disk", Level.WARN, text, "free space soon")
    return Finding("disk", Level.OK, text)


def check_private(paths: Paths) -> list[Finding]:
    """Tell which of our files others may read: transcripts and the token are in them."""
    out = []
    for path in (paths.store_dir, paths.log_dir, paths.token_file, paths.database):
        try:
            mode = path.stat().st_mode & 0o777
        except FileNotFoundError:
            continue
        except OSError as error:
            out.append(Finding("private", Level.FAIL, f"{path}: {error.strerror}", "fix its permissions"))
            continue
        if mode & 0o077:
            wanted = "700" if path.is_dir() else "600"
            text = f"{path} has mode {mode:04o}: others may read it"
            out.append(Finding("private", Level.FAIL, text, f"chmod {wanted} {path}"))
    return out or [Finding("private", Level.OK, "nobody else may read sessions, logs and the token")]


def check_writable(paths: Paths) -> Finding:
    """Tell if the daemon will be able to write its store."""
    folder = _nearest(paths.store_dir)
    if not folder.is_dir():
        return Finding("writable", Level.FAIL, f"{folder} is no folder", "set AKASHIC_HOME to a folder you can use")
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        to_do = "fix its permissions, or set AKASHIC_HOME to a folder you can write"
        return Finding("writable", Level.FAIL, f"{folder} can't be written: {error.strerror}", to_do)
    return Finding("writable", Level.OK, f"{folder} can be written")


def check_database(paths: Paths) -> Finding:
    """Tell if the database is whole, and of a version that this program reads."""
    if not os.path.exists(paths.database):
        return Finding("database", Level.OK, "there is no database yet; the daemon makes it")
    try:
        done = subprocess.run(
            [sys.executable, "-c", _DATABASE_PROBE, str(paths.database)],
            capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=True,
        )  # fmt: skip
        found = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return Finding("database", Level.WARN, f"{paths.database} could not be looked at: {error}", "try again")
    if found["problem"]:
        to_do = "stop the daemon, put the file aside, and restore it from a backup; the daemon makes a new one"
        return Finding("database", Level.FAIL, f"{paths.database} is damaged: {found['problem']}", to_do)
    if found["version"] > found["newest"]:
        text = f"{paths.database} has version {found['version']}; this program knows {found['newest']}"
        return Finding("database", Level.FAIL, text, "upgrade akashic, or set AKASHIC_HOME to another folder")
    return Finding("database", Level.OK, f"the database is whole, version {found['version']}")


def check_disk_speed(paths: Paths) -> Finding:
    """Measure how fast the store's disk takes and gives back some megabytes; the SSD tier lives by it."""
    folder = _nearest(paths.store_dir)
    try:
        if shutil.disk_usage(folder).free < FULL_DISK_BYTES + _PROBE_BYTES:
            return Finding("disk_speed", Level.OK, "the disk is too full to measure its speed")
        write, read = _disk_speed(folder)
    except OSError as error:
        return Finding("disk_speed", Level.WARN, f"measuring {folder}: {error.strerror}", "see `writable` and `disk`")
    text = f"{folder}: writes {size(round(write))}/s, reads {size(round(read))}/s"
    if min(write, read) < SLOW_DISK_BYTES_PER_S:
        to_do = "set AKASHIC_HOME to a faster disk, or `akashic config set cache.ssd_bytes 0`"
        return Finding("disk_speed", Level.WARN, f"{text}; too slow for the SSD tier to pay often", to_do)
    return Finding("disk_speed", Level.OK, text)


def _nearest(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that is there for us; what may not be looked into isn't."""
    return next((p for p in (folder, *folder.parents) if os.path.exists(p)), Path(folder.anchor))


def _disk_speed(folder: Path) -> tuple[float, float]:
    """Return bytes a second written to the disk, and read past the page cache where the system allows it."""
    data = os.urandom(_PROBE_BYTES)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".akashic-doctor-") as file:
        started_s = time.perf_counter()
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        written_s = time.perf_counter() - started_s
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        started_s = time.perf_counter()
        file.seek(0)
        while file.read(1 << 20):
            pass
        return len(data) / written_s, len(data) / (time.perf_counter() - started_s)


def check_budgets(paths: Paths) -> list[Finding]:
    """Tell if the tiers are promised more than the machine has."""
    try:
        cache = load(paths.config_file).config.cache
        folder = _nearest(paths.store_dir)
        usage = shutil.disk_usage(folder)
    except (AkashicError, OSError):
        return [Finding("budgets", Level.WARN, "the tiers' budgets weren't looked at", "fix settings and disk first")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    out = []
    for name, budget, there, of in (
        ("cache.ram_bytes", cache.ram_bytes, memory, "memory"),
        ("cache.ssd_bytes", cache.ssd_bytes, usage.total, "disk"),
    ):
        if budget != "auto" and budget > there:
            text = f"{name} is {size(budget)}, but the {of} has {size(there)}: the daemon won't start"
            out.append(Finding("budgets", Level.FAIL, text, f"`akashic config set {name} auto`"))
    return out or [Finding("budgets", Level.OK, "the tiers' budgets fit the machine")]
