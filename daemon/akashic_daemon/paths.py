"""Where things live. With `AKASHIC_HOME` set everything is under that folder, else XDG folders are used.

Only this module and `config` read the environment. Nothing is created here except by `ensure_private_dir`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from akashic_daemon.errors import StoreUnwritable, UsageError


@dataclass(frozen=True, slots=True)
class Paths:
    """Every file and folder that akashic owns."""

    config_file: Path
    store_dir: Path
    runtime_dir: Path
    log_dir: Path
    cache_dir: Path

    @property
    def database(self) -> Path:
        """The SQLite file: sessions, messages, models. The block store has its own beside it."""
        return self.store_dir / "akashic.db"

    @property
    def socket(self) -> Path:
        """The Unix socket on which the daemon always listens."""
        return self.runtime_dir / "akashic.sock"

    @property
    def lock(self) -> Path:
        """The file that a running daemon holds with flock."""
        return self.runtime_dir / "akashic.lock"

    @property
    def store_lock(self) -> Path:
        """Another one, beside the store: daemons whose runtime folders differ may have the same store."""
        return self.store_dir / "akashic.lock"

    @property
    def token_file(self) -> Path:
        """The bearer token for TCP clients, 0600."""
        return self.store_dir / "token"

    @property
    def daemon_log(self) -> Path:
        """What the daemon writes."""
        return self.log_dir / "daemon.log"

    @property
    def weights_digests(self) -> Path:
        """Digests of model files that were read in full once."""
        return self.cache_dir / "weights.json"

    @property
    def tier_costs(self) -> Path:
        """What computing and moving KV costs here, as measured."""
        return self.cache_dir / "tier_costs.json"

    @property
    def block_index(self) -> Path:
        """The SSD tier's index; its extents lie beside it."""
        return self.store_dir / "blocks.sqlite"

    @property
    def memory_database(self) -> Path:
        """The SQLite file of long-term memory."""
        return self.store_dir / "memory.sqlite"

    @property
    def memory_extents(self) -> Path:
        """The folder of memory's own block store: chunks that are read together lie together."""
        return self.store_dir / "memory"

    @property
    def pending_removals(self) -> Path:
        """Whose KV is to be removed from the disk, as long as that isn't done."""
        return self.store_dir / "removed_sessions.json"

    @property
    def chat_history(self) -> Path:
        """Lines typed into an interactive chat."""
        return self.store_dir / "chat_history"


def whole(path: str | Path) -> Path:
    """Return the whole path of one that may begin with `~`. Raises UsageError when that is nobody's home."""
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError as error:
        shown = str(path).encode("utf-8", "replace").decode()
        raise UsageError(
            f"reading the path {shown}: `{shown.split('/')[0]}` is no user's home folder",
            hint="give the whole path, or begin it with ./ when its name begins with ~",
        ) from error


def find_paths(env: Mapping[str, str] | None = None) -> Paths:
    """Return the paths that `env` (default: the process environment) asks for. Raises UsageError for `~` of nobody."""
    env = os.environ if env is None else env
    if home := env.get("AKASHIC_HOME"):
        root = whole(home)
        return Paths(root / "config.toml", root / "store", root / "run", root / "log", root / "cache")
    user = Path(env.get("HOME") or Path.home())

    def xdg(name: str, default: str) -> Path:
        value = env.get(name)
        return (Path(value) if value and Path(value).is_absolute() else user / default) / "akashic"

    state = xdg("XDG_STATE_HOME", ".local/state")
    runtime = env.get("XDG_RUNTIME_DIR")
    return Paths(
        config_file=xdg("XDG_CONFIG_HOME", ".config") / "config.toml",
        store_dir=xdg("XDG_DATA_HOME", ".local/share") / "store",
        runtime_dir=Path(runtime) / "akashic" if runtime and Path(runtime).is_absolute() else state / "run",
        log_dir=state / "log",
        cache_dir=xdg("XDG_CACHE_HOME", ".cache"),
    )


def ensure_private_dir(path: Path) -> Path:
    """Create `path` with mode 0700, or tighten it. Raises StoreUnwritable when that can't be done."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.stat().st_mode & 0o077:
            path.chmod(0o700)
    except OSError as error:
        raise StoreUnwritable(
            f"making the private folder {path}: {error.strerror or error}",
            hint="free space or fix permissions, or set AKASHIC_HOME to a folder you can write",
        ) from error
    return path
