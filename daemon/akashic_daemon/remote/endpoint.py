"""Where a remote model is and how it is spoken to, and the key that it asks for."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from akashic_daemon.errors import BadRequest, ConfigError

SESSION_HEADER = "x-session-id"
"""By it routers of clusters keep a session on the replica that has its prefix."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One model of one server.

    url: up to and including the version, without a slash at the end. model: its name there; empty asks for the only one.
    window_tokens: 0 when unknown. key_env, key_file: where the key is, at most one; without any none is sent.
    passes_ops: the server has AKV's fields, so cache operations go there as they are. session_header: empty for none.
    """

    url: str
    model: str = ""
    window_tokens: int = 0
    key_env: str = ""
    key_file: str = ""
    passes_ops: bool = False
    session_header: str = SESSION_HEADER

    def to_json(self) -> str:
        """Return the endpoint for storage; holds no key."""
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Endpoint:
        """Read what `to_json` wrote, of this version or an earlier one."""
        return Endpoint(**json.loads(text))

    def key(self, environ: Mapping[str, str] = os.environ) -> str | None:
        """Return the key to send, read anew each time. Raises ConfigError when it is missing or others may read it."""
        if self.key_env:
            found = environ.get(self.key_env, "").strip()
            if not found:
                raise ConfigError(
                    f"the key of {self.url}: the daemon's environment has no {self.key_env}",
                    hint=f"export {self.key_env} and `akashic daemon restart`, or add the model again with --key-file",
                )
            return found
        return _key_in(Path(self.key_file), self.url) if self.key_file else None


def _key_in(path: Path, url: str) -> str:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        found = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise ConfigError(f"the key of {url}: reading {path}: {why}", hint="write the key into that file") from error
    if mode & 0o077:
        raise ConfigError(f"the key of {url}: others may read {path} (mode {mode:o})", hint=f"chmod 600 {path}")
    if not found or "\n" in found:
        raise ConfigError(f"the key of {url}: {path} isn't one line", hint="write the key into that file")
    return found


def parse_url(text: str) -> str:
    """Return the base of a server's API from what people type: scheme added, the version added when there is no path.

    Raises BadRequest on what is no HTTP URL, or one with a key, a query or a fragment in it.
    """
    whole = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(whole)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise BadRequest(f"the URL {text!r}: {error}", hint="for example http://127.0.0.1:8000/v1") from error
    if parts.scheme not in ("http", "https") or not host:
        raise BadRequest(f"{text!r} is no HTTP URL", hint="for example http://127.0.0.1:8000/v1")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise BadRequest(
            f"the URL of {host} holds more than a place", hint="give keys with --key-env or --key-file, and no query"
        )
    path = parts.path.rstrip("/") or "/v1"
    return f"{parts.scheme}://{parts.netloc}{path}"
