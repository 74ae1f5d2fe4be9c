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
    """A file that the login's service manager reads, and the commands that make it take effect or not."""

    file: Path
    text: bytes
    enable: Sequence[Sequence[str]]
    disable: Sequence[Sequence[str]]

    @property
    def is_installed(self) -> bool:
        """Whether the file is there."""
        return self.file.exists()

    def install(self) -> None:
        """Write the file, replacing an earlier one of ours, and start the service.

        Raises Conflict when the file is somebody else's, StoreUnwritable when it can't be written, Unsupported when the
        service manager refuses; the file stays then.
        """
        if self.file.exists() and _MARK.encode() not in self.file.read_bytes():
            raise Conflict(f"installing the service: {self.file} isn't ours", hint="move it away first")
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.file.write_bytes(self.text)
        except OSError as error:
            raise StoreUnwritable(
                f"installing the service: writing {self.file}: {error.strerror}", hint="fix its permissions"
            ) from error
        for command in self.enable:
            _run(command, self.file)

    def uninstall(self) -> None:
        """Stop the service and remove its file. Raises NotFound, and Conflict when the file is somebody else's."""
        if not self.file.exists():
            raise NotFound(f"removing the service: there is no {self.file}", hint="`akashic daemon install` makes it")
        if _MARK.encode() not in self.file.read_bytes():
            raise Conflict(f"removing the service: {self.file} isn't ours", hint="remove it by hand")
        for command in self.disable[:1]:
            _run(command, self.file)
        self.file.unlink()
        for command in self.disable[1:]:
            _run(command, self.file)


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
        return _systemd(command, kept, config)
    raise Unsupported(
        "installing the daemon as a service: neither systemd nor launchd is here",
        hint=f"let your service manager run: {' '.join(command)}",
    )


def _systemd(command: Sequence[str], kept: Mapping[str, str], config: Path) -> LoginService:
    # No PrivateTmp: homes, models and logs that people name may stand in /tmp.
    lines = [
        f"# {_MARK}; edits are lost when it runs again.",
        "[Unit]",
        "Description=akashic: a local model for agents, with a cache that outlives them",
        "",
        "[Service]",
        f"ExecStart={' '.join(map(_quoted, command))}",
        *(f"Environment={_quoted(f'{name}={value}')}" for name, value in kept.items()),
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
        config / "systemd" / "user" / UNIT_NAME,
        "\n".join(lines).encode(),
        ([*systemctl, "daemon-reload"], [*systemctl, "enable", "--now", UNIT_NAME]),
        ([*systemctl, "disable", "--now", UNIT_NAME], [*systemctl, "daemon-reload"]),
    )


def _quoted(text: str) -> str:
    """Return a word as systemd reads it: its specifiers and variables don't work in it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if any(c in text for c in " \t\"'\\;") else escaped


def _launchd(paths: Paths, command: Sequence[str], kept: Mapping[str, str], home: Path) -> LoginService:
    ensure_private_dir(paths.log_dir)
    body = {
        "Label": AGENT_LABEL,
        "ProgramArguments": list(command),
        "EnvironmentVariables": dict(kept),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "StandardOutPath": str(paths.daemon_log),
        "StandardErrorPath": str(paths.daemon_log),
        "Umask": 0o077,
    }
    text = plistlib.dumps(body, sort_keys=False)
    file = home / "Library" / "LaunchAgents" / f"{AGENT_LABEL}.plist"
    domain = f"gui/{os.getuid()}"
    note = f"<!-- {_MARK}; edits are lost when it runs again. -->\n".encode()
    return LoginService(
        file,
        text.replace(b"<plist", note + b"<plist", 1),
        (["launchctl", "bootstrap", domain, str(file)],),
        (["launchctl", "bootout", f"{domain}/{AGENT_LABEL}"],),
    )


def _run(command: Sequence[str], file: Path) -> None:
    doing = " ".join(command)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unsupported(f"running `{doing}`: {error}", hint=f"{file} is there; start it by hand") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise Unsupported(f"running `{doing}`: {said}", hint=f"see to {file} by hand, or `akashic daemon start`")
