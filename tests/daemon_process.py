"""A daemon of its own process on the fake engine or a real model, over TCP and its socket; killed, ended and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx

from akashic_daemon.paths import find_paths
from fake_daemon import ENTRY, free_port
from fake_service import register

_START_LIMIT_S = 120.0


class DaemonProcess:
    """Runs on `home`; `log` is a file, so that what it says never makes it wait. Its port stays over restarts."""

    def __init__(
        self,
        home: Path,
        *flags: str,
        settings: dict[str, str] | None = None,
        real: bool = False,
        env: dict[str, str] | None = None,
    ) -> None:
        self.home, self.paths = home, find_paths({"AKASHIC_HOME": str(home)})
        self.log = home / "daemon.log"
        self.port = free_port()
        self._real = real
        self._flags = flags
        self._settings = settings or {}
        self._env = env or {}
        self._process: subprocess.Popen[bytes] | None = None
        if not real:
            register(home, ["fake"])

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def headers(self) -> dict[str, str]:
        """Headers that let a client in."""
        return {"authorization": f"Bearer {self.paths.token_file.read_text().strip()}"}

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The running process."""
        assert self._process is not None
        return self._process

    def start(self) -> None:
        """Start it and wait until it listens."""
        env = {k: v for k, v in os.environ.items() if not k.startswith("AKASHIC_")}
        env |= {"AKASHIC_HOME": str(self.home), "PYTHONPATH": os.pathsep.join([str(ENTRY.parent), *sys.path])}
        env |= self._env
        if self._real:
            env |= {"AKASHIC_" + k.replace(".", "_").upper(): v for k, v in self._settings.items()}
            command = ["-m", "akashic_daemon", "serve", "--port", str(self.port)]
        else:
            chosen = [f"--set={key}={value}" for key, value in self._settings.items()]
            command = [str(ENTRY), "--port", str(self.port), *chosen]
        with self.log.open("ab") as log:
            said_before = log.tell()
            self._process = subprocess.Popen([sys.executable, *command, *self._flags], env=env, stderr=log, stdout=log)
        deadline_s = time.monotonic() + _START_LIMIT_S
        while b"listens on" not in self.log.read_bytes()[said_before:]:
            if self.process.poll() is not None or time.monotonic() > deadline_s:
                raise AssertionError(f"the daemon doesn't start: {self.log.read_text()[-2000:]}")
            time.sleep(0.02)

    def kill(self) -> None:
        """End it at once, as a crash or the kernel would."""
        self.process.kill()
        self.process.wait()

    def end(self, limit_s: float) -> int:
        """End it as a service manager would; return its exit status. Raises TimeoutExpired."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(limit_s)

    def client(self, timeout_s: float = 60.0) -> httpx.Client:
        """Return a client over TCP, with the token."""
        return httpx.Client(base_url=self.url, headers=self.headers, timeout=timeout_s)

    def __enter__(self) -> DaemonProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
