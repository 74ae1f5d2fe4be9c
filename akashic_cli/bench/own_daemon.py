"""A daemon of the measurement's own, in a home that is thrown away: started, killed and started again as it needs.

The user's home, settings and running daemon are never touched. What the measurement sets stands in the home's
config.toml; `AKASHIC_` variables are kept from the daemon, but for the log's level.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from akashic_cli.autostart import daemon_command
from akashic_cli.bench.request import Target
from akashic_cli.client import Client
from akashic_cli.daemon_log import log_tail
from akashic_daemon.errors import AkashicError, DaemonNotRunning, DaemonUnhealthy, EngineError, StoreUnwritable
from akashic_daemon.paths import ensure_private_dir, find_paths
from akashic_daemon.protocol.native import Status
from akashic_daemon.protocol.tiers import TierReport

START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 30.0
SETTLE_TIMEOUT_S = 60.0
ORPHAN_S = 900
"""A daemon whose measurement was killed ends by itself after so long."""
_POLL_S = 0.05
_CALM_POLLS = 6
"""Looks in a row at which nothing moved: then all that was computed is copied out and written."""
MAX_TOKENS = 4


class OwnDaemon:
    """A home and, between `start` and `stop`, its daemon. Use it in a `with`: it leaves neither process nor folder."""

    def __init__(self, folder: Path | None, *, model: str | None, command: Sequence[str] | None = None) -> None:
        try:
            # Short: a socket's path has some hundred bytes.
            self.home = Path(tempfile.mkdtemp(prefix="akb", dir=folder))
        except OSError as error:
            raise StoreUnwritable(
                f"making a folder for the measured daemon in {folder or tempfile.gettempdir()}: {error.strerror}",
                hint="choose another --work-dir",
            ) from error
        self._paths = find_paths({"AKASHIC_HOME": str(self.home)})
        self._command = list(command or daemon_command())
        self._model_file = Path(model).absolute() if model is not None and Path(model).exists() else None
        self._model = model if self._model_file is None else self._model_file.stem
        self._child: subprocess.Popen[bytes] | None = None
        self.client = Client(self._paths.socket)

    def __enter__(self) -> OwnDaemon:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()
        self.client.close()
        shutil.rmtree(self.home, ignore_errors=True)

    # -- life --------------------------------------------------------------------------------------------------

    def start(self, settings: Mapping[str, Any]) -> Status:
        """Start with these settings and return the status with the model loaded. Raises DaemonNotRunning, EngineError."""
        if self._model_file is not None and not self._paths.database.exists():
            self._register(self._model_file)
        named = {} if self._model is None else {"model.default": self._model}
        self._configure({"serve.idle_exit_s": ORPHAN_S, **named, **settings})
        self._spawn()
        return self._wait(loaded=True)

    def stop(self) -> None:
        """End it with SIGTERM: it flushes. Raises DaemonUnhealthy when it stays."""
        child, self._child = self._child, None
        if child is None:
            return
        child.terminate()
        try:
            child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            raise DaemonUnhealthy(f"stopping the measured daemon: still there after {STOP_TIMEOUT_S:.0f} s") from None

    def kill(self) -> None:
        """End it with SIGKILL."""
        child, self._child = self._child, None
        if child is not None:
            child.send_signal(signal.SIGKILL)
            child.wait()

    def forget_pages(self) -> str:
        """Let the operating system drop what it holds in memory of the stored KV, as after a reboot; say why it doesn't."""
        if not hasattr(os, "posix_fadvise"):
            return "this system keeps what was written in memory: ssd, restart and hinted didn't read from the disk"
        for extent in self._paths.store_dir.glob("extents/*"):
            descriptor = os.open(extent, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
        return ""

    def _register(self, file: Path) -> None:
        """Make a model file known to the home: the daemon does that, and is stopped again."""
        self._configure({"cache.ram_bytes": 0, "cache.ssd_bytes": 0})
        self._spawn()
        self._wait(loaded=False)
        self.client.post("/models", {"path": str(file), "name": self._model, "default": True})
        self.stop()

    def _configure(self, settings: Mapping[str, Any]) -> None:
        sections: dict[str, list[str]] = {}
        for name, value in settings.items():
            section, key = name.split(".", 1)
            sections.setdefault(section, []).append(f"{key} = {json.dumps(value)}\n")
        text = "".join(f"[{section}]\n{''.join(lines)}" for section, lines in sections.items())
        ensure_private_dir(self._paths.config_file.parent)
        self._paths.config_file.write_text(text, encoding="utf-8")

    def _spawn(self) -> None:
        ensure_private_dir(self._paths.log_dir)
        env = {k: v for k, v in os.environ.items() if not k.startswith("AKASHIC_") or k == "AKASHIC_LOG_LEVEL"}
        with self._paths.daemon_log.open("ab") as log:
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
                env={**env, "AKASHIC_HOME": str(self.home)},
            )

    def _wait(self, *, loaded: bool) -> Status:
        """Wait until it answers, and has loaded its model where that is wanted."""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline_s:
            assert self._child is not None
            if self._child.poll() is not None:
                words = "\n".join(log_tail(self._paths.daemon_log, 8))
                raise DaemonNotRunning(
                    f"starting the measured daemon: it ended with code {self._child.returncode}; its last words:\n{words}"
                )
            try:
                status = self.client.handshake()
            except DaemonNotRunning:
                time.sleep(_POLL_S)
                continue
            if not loaded or status.engine.state == "ready":
                return status
            if status.engine.state == "failed":
                raise EngineError(f"loading the model in the measured daemon: {status.engine.detail}")
            time.sleep(_POLL_S)
        raise DaemonUnhealthy(f"starting the measured daemon: not ready after {START_TIMEOUT_S:.0f} s")

    # -- asking ------------------------------------------------------------------------------------------------

    def target(self, *, named_sessions: bool) -> Target:
        """Return where requests go; with a session's name in each, or as any tool sends them."""
        extra = {"akashic": {"session": "$SESSION"}} if named_sessions else {}
        return Target("http://localhost/v1", str(self._paths.socket), None, None, MAX_TOKENS, extra)

    def count_tokens(self, text: str) -> int:
        """Return how many tokens a text has as the one message of a prompt."""
        body = {"messages": [{"role": "user", "content": text or " "}]}
        url = "http://localhost/v1/messages/count_tokens"
        with self.target(named_sessions=False).http() as http:
            answer = http.post(url, json=body)
        if answer.is_error:
            raise AkashicError(
                f"counting tokens in the measured daemon: HTTP {answer.status_code}: {answer.text[:300]}"
            )
        return int(answer.json()["input_tokens"])

    def tiers(self) -> TierReport:
        """Return what the tiers did."""
        return TierReport.model_validate(self.client.get("/cache/tiers"))

    def settle(self) -> TierReport:
        """Wait until nothing is copied or written any more, and return the tiers' report. Raises DaemonUnhealthy."""
        deadline_s = time.monotonic() + SETTLE_TIMEOUT_S
        last, calm = self.tiers(), 0
        while calm < _CALM_POLLS:
            if time.monotonic() > deadline_s:
                raise DaemonUnhealthy(
                    f"measuring tiers: blocks still move {SETTLE_TIMEOUT_S:.0f} s after the last request"
                )
            time.sleep(_POLL_S)
            now = self.tiers()
            is_calm = not now.moves.waiting_writes and (now.moves, now.wear) == (last.moves, last.wear)
            calm, last = calm + 1 if is_calm else 0, now
        return last
