"""What a shell offers when Tab is pressed: names that only the daemon or the settings know.

Nothing may be printed here, and no daemon is started: a failure completes nothing.
"""

from __future__ import annotations

from typing import Any

from akashic_daemon.errors import AkashicError

ANSWER_TIMEOUT_S = 2.0
"""A shell that hangs at Tab is worse than one that offers nothing."""


def sessions(incomplete: str) -> list[str]:
    """Return the names of sessions that begin so."""
    return _named("/sessions", "sessions", "session", incomplete)


def models(incomplete: str) -> list[str]:
    """Return the names of models that begin so."""
    return _named("/models", "models", "name", incomplete)


def policies(incomplete: str) -> list[str]:
    """Return the names of policies that begin so."""
    from akashic_daemon.context.policies import PolicyShelf
    from akashic_daemon.paths import find_paths

    try:
        return [policy.name for policy in PolicyShelf(find_paths()).all() if policy.name.startswith(incomplete)]
    except AkashicError:
        return []


def settings(incomplete: str) -> list[str]:
    """Return the settings, `section.key`, that begin so."""
    from akashic_daemon.config import Config

    names = [f"{section}.{key}" for section, keys in Config().model_dump().items() for key in keys]
    return [name for name in names if name.startswith(incomplete)]


def _named(path: str, plural: str, field: str, incomplete: str) -> list[str]:
    from akashic_cli.client import Client
    from akashic_daemon.paths import find_paths

    try:
        with Client(find_paths().socket, answer_timeout_s=ANSWER_TIMEOUT_S) as client:
            found: Any = client.get(path)
    except AkashicError:
        return []
    names = [str(item[field]) for item in found[plural]]
    return [name for name in names if name.startswith(incomplete)]
