"""The daemon as a service that starts with the login: a systemd user unit, or a launchd agent on macOS."""

from __future__ import annotations

import os
import plistlib
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from akashic_daemon.errors import Conflict, NotFound, StoreUnwritable, Unsupported
from akashic_daemon.paths import Paths, ensure_private_dir

UNIT_NAME = "akashic.service"
AGENT_LABEL = "dev.akashic.daemon"
_KEPT_VARIABLES = (
    "AKASHIC_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR",
)  # fmt: skip
"""By these the service finds the same home as the command that installed it."""
_MARK = "Written by `akashic daemon install`"
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class LoginService:
    """A file that the login's service manager reads, and the commands that make it take effect or not.

    let_go: makes the manager forget what it read of the file earlier; fails where there was nothing. running: succeeds
    while the service runs. stopping: ends it; empty where a signal to the daemon is all that there is.
    """

    file: Path
    text: bytes
    log_dir: Path
    enable: Sequence[Sequence[str]]
    disable: Sequence[Sequence[str]]
    restarting: Sequence[str]
    running: Sequence[str]
    stopping: Sequence[str] = ()
    let_go: Sequence[str] = ()

    @property
    def is_installed(self) -> bool:
        """Whether the file is there."""
        return self.file.exists()

    @property
    def is_current(self) -> bool:
        """Whether the file is the one that this installation writes for this home. Raises OSError."""
        return self.is_installed and self.file.read_bytes() == self.text

    def runs(self) -> bool:
        """Tell if the daemon of this installation and home runs as this service."""
        try:
            return self.is_current and _done(self.running).returncode == 0
        except (OSError, subprocess.TimeoutExpired):
            return False  # Nobody who could be asked runs anything.

    def write(self) -> None:
        """Write the file, replacing an earlier one of ours.

        Raises Conflict when the file is somebody else's, StoreUnwritable when it can't be written.
        """
        if self.is_installed and not self._is_ours():
            raise Conflict(f"installing the service: {self.file} isn't ours", hint="move it away first")
        ensure_private_dir(self.log_dir)
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.file.write_bytes(self.text)
        except OSError as error:
            raise StoreUnwritable(
                f"installing the service: writing {self.file}: {error.strerror}", hint="fix its permissions"
            ) from error

    def start(self) -> None:
        """Start the service, now and with each login. Raises Unsupported when the manager refuses; the file stays then."""
        if self.let_go:
            _tried(self.let_go, self.file)
        for command in self.enable:
            _run(command, self.file)

    def restart(self) -> None:
        """Start the service anew. Raises Unsupported when the manager refuses."""
        _run(self.restarting, self.file)

    def stop(self) -> None:
        """Stop the service until it is started again. Raises Unsupported when the manager refuses."""
        if self.stopping:
            _run(self.stopping, self.file)

    def uninstall(self) -> None:
        """Stop the service and remove its file. Raises NotFound, and Conflict when the file is somebody else's."""
        if not self.is_installed:
            raise NotFound(f"removing the service: there is no {self.file}", hint="`akashic daemon install` makes it")
        if not self._is_ours():
            raise Conflict(f"removing the service: {self.file} isn't ours", hint="remove it by hand")
        for command in self.disable[:1]:
            _run(command, self.file)
        self.file.unlink()
        for command in self.disable[1:]:
            _run(command, self.file)

    def _is_ours(self) -> bool:
        return _MARK.encode() in self.file.read_bytes()


def login_service(
    paths: Paths,
    command: Sequence[str],
    *,
    environ: Mapping[str, str] = os.environ,
    platform: str = sys.platform,
) -> LoginService:
    """Return the service of this home. Raises Unsupported where there is no manager that we know."""
    home = Path(environ.get("HOME") or Path.home())
    kept = {name: environ[name] for name in _KEPT_VARIABLES if environ.get(name)}
    if platform == "darwin":
        return _launchd(paths, command, kept, home)
    if platform.startswith("linux") and shutil.which("systemctl"):
        config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
        return _systemd(paths, command, kept, config)
    raise Unsupported(
        "installing the daemon as a service: neither systemd nor launchd is here",
        hint=f"let your service manager run: {' '.join(command)}",
    )


def _systemd(paths: Paths, command: Sequence[str], kept: Mapping[str, str], config: Path) -> LoginService:
    program, *arguments = command
    # No PrivateTmp: homes, models and logs that people name may stand in /tmp.
    lines = [
        f"# {_MARK}; edits are lost when it runs again.",
        "[Unit]",
        "Description=akashic: a local model for agents, with a cache that outlives them",
        "",
        "[Service]",
        # Variables work in arguments, not in the program's name.
        f"ExecStart={' '.join([_quoted(program), *(_quoted(word).replace('$', '$$') for word in arguments)])}",
        *(f"Environment={_quoted(f'{name}={value}')}" for name, value in kept.items()),
        # Where `akashic daemon logs` reads; else it is the journal.
        f"StandardOutput=append:{_escaped(str(paths.daemon_log))}",
        f"StandardError=append:{_escaped(str(paths.daemon_log))}",
        "Restart=on-failure",
        "RestartSec=2",
        "TimeoutStopSec=15",
        "NoNewPrivileges=yes",
        "UMask=0077",
        "",
        "[Install]",
        "WantedBy=default.target",
        "",
    ]
    systemctl = ["systemctl", "--user"]
    return LoginService(
        file=config / "systemd" / "user" / UNIT_NAME,
        text="\n".join(lines).encode(),
        log_dir=paths.log_dir,
        # Restarted, for a daemon that has just ended may count as running still, and would then not be started.
        enable=([*systemctl, "daemon-reload"], [*systemctl, "enable", UNIT_NAME], [*systemctl, "restart", UNIT_NAME]),
        disable=([*systemctl, "disable", "--now", UNIT_NAME], [*systemctl, "daemon-reload"]),
        restarting=[*systemctl, "restart", UNIT_NAME],
        running=[*systemctl, "is-active", "--quiet", UNIT_NAME],
        stopping=[*systemctl, "stop", UNIT_NAME],
    )


def _quoted(text: str) -> str:
    """Return a word as systemd reads it: its specifiers don't work in it."""
    escaped = _escaped(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"' if any(c in text for c in " \t\"'\\;") else escaped


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


def _launchd(paths: Paths, command: Sequence[str], kept: Mapping[str, str], home: Path) -> LoginService:
    body = {
        "Label": AGENT_LABEL,
        "ProgramArguments": list(command),
        "EnvironmentVariables": dict(kept),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        # The default throttles CPU and disk, which is what computing needs.
        "ProcessType": "Interactive",
        "StandardOutPath": str(paths.daemon_log),
        "StandardErrorPath": str(paths.daemon_log),
        "Umask": 0o077,
    }
    text = plistlib.dumps(body, sort_keys=False)
    file = home / "Library" / "LaunchAgents" / f"{AGENT_LABEL}.plist"
    domain = f"gui/{os.getuid()}"
    agent = f"{domain}/{AGENT_LABEL}"
    note = f"<!-- {_MARK}; edits are lost when it runs again. -->\n".encode()
    return LoginService(
        file=file,
        text=text.replace(b"<plist", note + b"<plist", 1),
        log_dir=paths.log_dir,
        # What is loaded already is refused, and reading the file anew takes loading it anew.
        let_go=["launchctl", "bootout", agent],
        enable=(["launchctl", "bootstrap", domain, str(file)],),
        disable=(["launchctl", "bootout", agent],),
        restarting=["launchctl", "kickstart", "-k", agent],
        running=["launchctl", "print", agent],
    )


def _run(command: Sequence[str], file: Path) -> None:
    done = _tried(command, file)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise Unsupported(
            f"running `{' '.join(command)}`: {said}", hint=f"see to {file} by hand, or `akashic daemon start`"
        )


def _tried(command: Sequence[str], file: Path) -> subprocess.CompletedProcess[str]:
    try:
        return _done(command)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unsupported(
            f"running `{' '.join(command)}`: {error}", hint=f"{file} is there; start it by hand"
        ) from error


def _done(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
