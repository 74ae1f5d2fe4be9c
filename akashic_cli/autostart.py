"""Start, find and stop the daemon process."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from akashic_cli.client import Client
from akashic_cli.daemon_log import log_tail
from akashic_cli.render.output import err
from akashic_daemon.errors import AkashicError, DaemonNotRunning, DaemonUnhealthy, StoreUnwritable
from akashic_daemon.paths import Paths, ensure_private_dir

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0
"""The daemon ends itself by force 9.5 s after it has seen the signal; a busy machine lets it see that later."""
POLL_INTERVAL_S = 0.05
SHOWN_LOG_LINES = 8
_ROOM_FOR_WORDS_BYTES = 1 << 16


def daemon_command() -> list[str]:
    """Return the command that serves in the foreground."""
    return [sys.executable, "-m", "akashic_daemon", "serve"]


def start_daemon(client: Client, paths: Paths, env: Mapping[str, str] | None = None) -> None:
    """Start a daemon in its own session and wait until it is healthy. `env` is added to its environment.

    Raises DaemonNotRunning with the last lines of its log when it ends, DaemonUnhealthy when it takes too long.
    """
    ensure_private_dir(paths.log_dir)
    log_start = _log_size(paths.daemon_log)
    await_daemon(client, paths, _spawn(paths, env), log_start)


def await_daemon(
    client: Client, paths: Paths, child: subprocess.Popen[bytes] | None = None, log_start: int = 0
) -> None:
    """Wait until a daemon is healthy that was just started: as `child`, or by a service manager.

    Raises as `start_daemon`; log_start: where in the log its words begin.
    """
    with err().status("starting the akashic daemon") as spinner:

        def describe(detail: str) -> None:
            spinner.update(f"starting the akashic daemon: {detail}" if detail else "starting the akashic daemon")

        _wait_healthy(client, paths, child, log_start, describe)


def _spawn(paths: Paths, env: Mapping[str, str] | None) -> subprocess.Popen[bytes]:
    try:
        log = os.open(paths.daemon_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except OSError as error:
        raise StoreUnwritable(
            f"opening the daemon's log {paths.daemon_log}: {error.strerror}", hint="fix permissions or free space"
        ) from error
    try:
        return subprocess.Popen(
            daemon_command(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
            env={**os.environ, **(env or {})},
        )
    except OSError as error:
        raise DaemonNotRunning(
            f"starting the daemon with {sys.executable}: {error.strerror}", hint="reinstall akashic"
        ) from error
    finally:
        os.close(log)


def _wait_healthy(
    client: Client, paths: Paths, child: subprocess.Popen[bytes] | None, log_start: int, describe: Callable[[str], None]
) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    detail = "waiting for its socket"
    while time.monotonic() < deadline:
        try:
            healthy, detail = client.health()
            if healthy:
                return
        except DaemonNotRunning:
            # A child that lost the race against another command's daemon ends; then the winner is waited for.
            if child is not None and child.poll() is not None and not lock_is_held(paths.lock):
                raise _died(child.returncode, paths, log_start) from None
        except DaemonUnhealthy as error:
            detail = error.message
        describe(detail)
        time.sleep(POLL_INTERVAL_S)
    raise DaemonUnhealthy(
        f"starting the daemon: not healthy after {START_TIMEOUT_S:.0f} s ({detail})",
        hint=f"it goes on; `akashic daemon status` asks again, the log is {paths.daemon_log}",
    )


def _died(code: int, paths: Paths, log_start: int) -> AkashicError:
    try:
        lines = log_tail(paths.daemon_log, SHOWN_LOG_LINES, start=log_start)
    except OSError:
        lines = []
    if not lines and _is_full(paths.log_dir):
        return StoreUnwritable(
            f"starting the daemon: the disk of {paths.log_dir} is full, it has no room even for a log",
            hint="free space, or set AKASHIC_HOME to a folder on another disk",
        )
    said = "; its last words:\n" + "\n".join(f"  {line}" for line in lines) if lines else "; it wrote nothing"
    return DaemonNotRunning(
        f"starting the daemon: it ended with code {code}{said}",
        hint=f"`akashic doctor` looks for the cause; the log is {paths.daemon_log}",
    )


def _is_full(folder: Path) -> bool:
    try:
        return shutil.disk_usage(folder).free < _ROOM_FOR_WORDS_BYTES
    except OSError:
        return False


def _log_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def lock_is_held(lock: Path) -> bool:
    """Tell if a daemon holds the lock file. The file alone means nothing: it stays when a daemon dies."""
    try:
        descriptor = os.open(lock, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def find_pid(client: Client, paths: Paths) -> int | None:
    """Return the pid of the running daemon: what stands in the lock file that it holds, else what it says itself.

    In this order, for one that hangs must be stoppable at once. Raises DaemonUnhealthy when there is one that can't be found.
    """
    if lock_is_held(paths.lock) and (pid := _pid_in(paths.lock)) is not None:
        return pid
    try:
        body = client.get("/status")
    except AkashicError as error:
        if not lock_is_held(paths.lock):
            if isinstance(error, DaemonNotRunning):
                return None
            raise
        raise DaemonUnhealthy(
            f"finding the daemon that holds {paths.lock}: the file names no pid, and it doesn't answer",
            hint=f"`fuser {paths.lock}` names the process",
        ) from error
    return int(body["pid"]) if isinstance(body, dict) and isinstance(body.get("pid"), int) else None


def _pid_in(lock: Path) -> int | None:
    try:
        return int(lock.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def stop_daemon(client: Client, paths: Paths) -> int | None:
    """Ask the daemon to end and wait until it has let go of its lock; return its pid, None if there was none."""
    pid = find_pid(client, paths)
    if pid is None:
        return None
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return None
    except PermissionError as error:
        raise DaemonUnhealthy(f"stopping the daemon with pid {pid}: it belongs to another user") from error
    deadline = time.monotonic() + STOP_TIMEOUT_S
    with err().status(f"stopping the akashic daemon (pid {pid})"):
        while lock_is_held(paths.lock) or _alive(pid):
            if time.monotonic() > deadline:
                raise DaemonUnhealthy(
                    f"stopping the daemon with pid {pid}: still there after {STOP_TIMEOUT_S:.0f} s",
                    hint=f"`kill -9 {pid}` ends it; at most the block being written is lost",
                )
            time.sleep(POLL_INTERVAL_S)
    return pid


def _alive(pid: int) -> bool:
    """Tell if a process runs; one that has ended but wasn't waited for by its parent doesn't."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return not Path("/proc/self/stat").exists()
    return stat.rpartition(")")[2].split()[0] != "Z"
