"""The policies that can be named: those that come with akashic, and the user's in `policies/*.policy` beside config.toml.

A user's file is read again when it has changed, so an edited policy holds from the next request on. A name that akashic
uses itself can't be taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from akashic_daemon.errors import AkashicError, BadRequest, ConfigError
from akashic_daemon.paths import Paths
from akashic_daemon.program.grammar import nearest
from akashic_daemon.program.policy import Policy, builtin_names, builtin_source, load, parse_policy, split_spec
from akashic_daemon.protocol.context import PolicyInfo

_SUFFIX = ".policy"
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class _Read:
    mtime_ns: int
    policy: Policy


class PolicyShelf:
    """Finds policies by name."""

    def __init__(self, paths: Paths) -> None:
        self.folder = paths.config_file.parent / "policies"
        self._read: dict[str, _Read] = {}

    def find(self, spec: str) -> Policy:
        """Return the policy that `NAME` or `NAME:parameter=value,…` means. Raises BadRequest, with the nearest name."""
        name, given = split_spec(spec)
        if name in builtin_names():
            return load(spec)
        path = self._files().get(name)
        if path is None:
            known = [*builtin_names(), *self._files()]
            raise BadRequest(
                f"there is no policy {name!r}", hint=nearest(name, known) or f"there are {', '.join(known)}"
            )
        return self._parsed(name, path).with_parameters(given)

    def source(self, name: str) -> str:
        """Return a policy's text. Raises BadRequest, with the nearest name."""
        path = None if name in builtin_names() else self._files().get(name)
        if path is not None:
            return _text(path)
        self.find(name)
        return builtin_source(name)

    def all(self) -> list[PolicyInfo]:
        """Return every policy; one that can't be used says why."""
        found = [_info(name, parse_policy(builtin_source(name)), None) for name in builtin_names()]
        for name, path in self._files().items():
            if name in builtin_names():
                found.append(PolicyInfo(name=name, path=str(path), problem="akashic has a policy of that name itself"))
                continue
            try:
                found.append(_info(name, self._parsed(name, path), path))
            except AkashicError as error:
                found.append(PolicyInfo(name=name, path=str(path), problem=str(error)))
        return found

    def _files(self) -> dict[str, Path]:
        try:
            files = sorted(self.folder.glob(f"*{_SUFFIX}")) if self.folder.is_dir() else []
        except OSError as error:
            raise ConfigError(f"reading {self.folder}: {error.strerror}", hint="fix its permissions") from error
        return {path.name.removesuffix(_SUFFIX): path for path in files}

    def _parsed(self, name: str, path: Path) -> Policy:
        try:
            mtime_ns = path.stat().st_mtime_ns
        except OSError as error:
            raise ConfigError(f"reading the policy {path}: {error.strerror}", hint="fix its permissions") from error
        known = self._read.get(name)
        if known is not None and known.mtime_ns == mtime_ns:
            return known.policy
        try:
            policy = parse_policy(_text(path))
        except BadRequest as error:
            raise BadRequest(f"reading the policy {path}: {error.message}", hint=error.hint) from error
        if policy.name != name:
            raise BadRequest(
                f"reading the policy {path}: it calls itself {policy.name!r}",
                hint=f"name the file {policy.name}{_SUFFIX}",
            )
        self._read[name] = _Read(mtime_ns, policy)
        return policy


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ConfigError(f"reading the policy {path}: it is over {_MOST_BYTES:,} bytes", hint="policies are short")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"reading the policy {path}: {error.strerror}", hint="fix its permissions") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"reading the policy {path}: it is not UTF-8", hint="save it as UTF-8") from error


def _info(name: str, policy: Policy, path: Path | None) -> PolicyInfo:
    return PolicyInfo(
        name=name,
        about=policy.about,
        parameters={key: str(amount) for key, amount in policy.parameters},
        rules=[str(rule) for rule in policy.rules],
        source=_text(path) if path is not None else builtin_source(name),
        path=None if path is None else str(path),
    )
