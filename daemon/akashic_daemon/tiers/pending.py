"""What is to be removed from the disk and isn't yet: names of sessions, and whether files are to be rewritten.

Written down before a session is removed, and struck out when nothing of it is left in any file: so a kill in between, a
tier that is off or a disk that refuses only puts the deletion off until the tier is opened next. A small file beside the
store; names of sessions, nothing of their text.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from threading import Lock

from akashic_daemon.errors import AkashicError, StoreUnwritable
from akashic_daemon.tiers.ssd import SsdTier

logger = logging.getLogger("akashic.tiers")


class PendingRemovals:
    """The file, and what it says. All methods may be called on any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()
        self._sessions, self._wipe = _load(path)

    @property
    def sessions(self) -> tuple[str, ...]:
        """Sessions whose blocks are to go."""
        return tuple(self._sessions)

    @property
    def wipe(self) -> bool:
        """Whether files still hold payloads of blocks that are gone from the index."""
        return self._wipe

    def add(self, session: str) -> None:
        """Write down that a session's blocks are to go. Raises StoreUnwritable."""
        with self._lock:
            self._set([*(s for s in self._sessions if s != session), session], self._wipe)

    def removed(self, session: str, *, wiped: bool) -> None:
        """Strike a session out; without `wiped`, what it leaves in files is still to go. Raises StoreUnwritable."""
        with self._lock:
            self._set([s for s in self._sessions if s != session], not wiped)

    def carry_out(self, ssd: SsdTier) -> None:
        """Remove what is to go from a tier that was just opened. Never raises: what can't be done now stays pending."""
        if not self._sessions and not self._wipe:
            return
        try:
            for session in self.sessions:
                ssd.forget_group(session)
                self.removed(session, wiped=False)
            left = ssd.prune().left
            with self._lock:
                self._set(self._sessions, left > 0)
        except AkashicError as error:
            logger.warning("removing the KV of sessions that were removed earlier is put off again: %s", error)

    def _set(self, sessions: list[str], wipe: bool) -> None:
        """Have the file say so, or be gone when there is nothing to say."""
        temporary = self._path.with_suffix(".new")
        try:
            if sessions or wipe:
                descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                    json.dump({"sessions": sessions, "wipe": wipe}, file)
                    file.flush()
                    os.fsync(file.fileno())
                temporary.replace(self._path)
            else:
                self._path.unlink(missing_ok=True)
        except OSError as error:
            raise StoreUnwritable(
                f"writing down in {self._path} whose KV is to be removed: {error.strerror or error}",
                hint="free disk space or fix permissions, then remove the session again",
            ) from error
        self._sessions, self._wipe = sessions, wipe


def _load(path: Path) -> tuple[list[str], bool]:
    try:
        found = json.loads(path.read_text("utf-8"))
        return [str(name) for name in found["sessions"]], bool(found["wipe"])
    except FileNotFoundError:
        return [], False
    except (OSError, ValueError, TypeError, KeyError) as error:
        logger.warning(
            "%s can't be read, so KV of removed sessions may be left; `akashic cache prune --all` removes all KV: %s",
            path,
            error,
        )
        return [], True
