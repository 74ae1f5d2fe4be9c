"""Following logs into memory: which files there are, which of them changed, and one step of each in turn.

The system tells of changes (watchdog); a slow look at everything finds what it doesn't tell. A log that was renamed is found
by its inode beside its old name and read to its end before the new one. Marks are kept after what they speak of.
"""

from __future__ import annotations

import asyncio
import fnmatch
import glob
import logging
import os
import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from akashic_daemon.errors import AkashicError, BadRequest, Conflict
from akashic_daemon.memory.packed import Packed, found_packed
from akashic_daemon.memory.watch import Follower, Replaced, Step, continues
from akashic_daemon.memory_service.service import MemoryService
from akashic_daemon.store.memory.marks import WatchMark
from akashic_daemon.store.memory.rows import storable
from akashic_daemon.types import Clock, SystemClock

logger = logging.getLogger("akashic.memory")
INCLUDE = ("*.jsonl",)
QUIET_S = 30.0
"""After so long without a line, a message that could still go on counts as whole."""
_LOOK_S = 2.0
_NUMBER = re.compile(r"\.\d{1,6}\Z")
_MOST_FOLLOWERS = 256
_SHOWN_CHARS = 300

Key = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _State:
    key: Key
    size_bytes: int
    changed_ns: int


@dataclass(frozen=True, slots=True)
class Watched:
    """What happened: watching began, something was read, something couldn't be, or all is read that there is."""

    kind: Literal["watching", "read", "problem", "caught_up"]
    path: str = ""
    new: int = 0
    known: int = 0
    read_bytes: int = 0
    behind_bytes: int = 0
    files: int = 0
    line: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Where:
    """What is watched: folders with all below them, and single files. include: patterns of names in folders.

    A name with a number behind it (`s.jsonl.1`) is an older log of that name: one that was begun and renamed while nobody
    looked is known by nothing else.
    """

    roots: tuple[Path, ...]
    include: tuple[str, ...] = INCLUDE

    def has(self, path: Path) -> bool:
        """Tell if a file is one of those to read."""
        whole = path.with_name(_NUMBER.sub("", path.name) or path.name)
        if path in self.roots or whole in self.roots:
            return True
        return self._is_log(path.name) and any(root in path.parents for root in self.roots)

    def files(self) -> Iterator[Path]:
        """Walk all of them; what can't be entered is passed over."""
        for root in self.roots:
            if not root.is_dir():
                beside = root.parent.glob(f"{glob.escape(root.name)}.*")
                yield from (root, *(path for path in beside if self.has(path)))
                continue
            for folder, _, names in os.walk(root):
                yield from (Path(folder, name) for name in names if self._is_log(name))

    def _is_log(self, name: str) -> bool:
        return any(fnmatch.fnmatch(_NUMBER.sub("", name), pattern) for pattern in self.include)


class MemoryWatch:
    """All that is being watched into one memory."""

    def __init__(self, memory: MemoryService, clock: Clock | None = None) -> None:
        self._memory = memory
        self._clock = clock or SystemClock()
        self._watched: dict[tuple[str, Path], None] = {}

    async def watch(
        self,
        paths: Sequence[str],
        *,
        namespace: str,
        include: Sequence[str] = INCLUDE,
        once: bool = False,
        quiet_s: float = QUIET_S,
    ) -> AsyncGenerator[Watched, None]:
        """Follow logs until the generator is closed, or until all is read that there is.

        Raises BadRequest for a path that doesn't exist, Conflict when one is watched into the namespace already.
        """
        where = Where(tuple(dict.fromkeys(_root(path) for path in paths)), tuple(include))
        taken = self._take(namespace, where)
        try:
            looking = _Looking(self._memory, self._clock, namespace, where, quiet_s)
            async with _changes(where) as changed:
                async for event in looking.events(changed, once=once):
                    yield event
        finally:
            for key in taken:
                del self._watched[key]

    def _take(self, namespace: str, where: Where) -> list[tuple[str, Path]]:
        for root in where.roots:
            for space, other in self._watched:
                if space == namespace and (other == root or other in root.parents or root in other.parents):
                    raise Conflict(
                        f"watching {root}: {other} is being watched into {namespace} already",
                        hint="end the other `akashic mem watch` first",
                    )
        taken = [(namespace, root) for root in where.roots]
        self._watched |= dict.fromkeys(taken)
        return taken


class _Looking:
    """One watch: the marks and followers of its files."""

    def __init__(self, memory: MemoryService, clock: Clock, namespace: str, where: Where, quiet_s: float) -> None:
        self._memory = memory
        self._clock = clock
        self._namespace = namespace
        self._where = where
        self._quiet_s = quiet_s
        self._marks: dict[Key, WatchMark] = {}
        self._at: dict[Path, Key] = {}
        """Which file was last seen under a name."""
        self._followers: OrderedDict[Key, Follower] = OrderedDict()
        self._told: set[Path] = set()
        """Files that can't be read, and were told of once."""
        self._under_other_names: dict[Path, Key] = {}
        self._lost: list[Watched] = []
        """What is to be told of logs that went before they were read."""
        self._read_as: dict[Path, _State] = {}
        """What a file was like when nothing in it was left to read."""

    async def events(self, changed: _Changes, *, once: bool) -> AsyncIterator[Watched]:
        """Look at everything, then at what changes."""
        await self._find_renamed()
        pending = await asyncio.to_thread(self._all)
        yield Watched("watching", files=len(pending), reason=changed.problem)
        for event in self._told_of_lost():
            yield event
        looked_s = self._clock.monotonic_s()
        while True:
            read = False
            with self._memory.feeding():
                while pending:
                    path = next(iter(pending))
                    del pending[path]
                    async for event in self._look(path):
                        read = True
                        if event.kind == "read":
                            # The others first, then on with this one.
                            pending[path] = None
                        yield event
                    pending |= self._of_ours(changed.take())
            if once:
                return
            if read:
                yield Watched("caught_up")
            await changed.wait(_LOOK_S)
            pending = self._of_ours(changed.take())
            if self._clock.monotonic_s() - looked_s >= _LOOK_S:
                pending |= await asyncio.to_thread(self._all)
                looked_s = self._clock.monotonic_s()

    async def _find_renamed(self) -> None:
        """Find out what became of the files that were followed before; those that are gone are given up."""
        for mark in await self._memory.watch_marks(self._namespace):
            path = Path(mark.path)
            if not self._where.has(path):
                continue
            self._marks[mark.key] = mark
            if await asyncio.to_thread(_key_of, path) == mark.key:
                self._at[path] = mark.key
            else:
                await self._renamed(path, mark.key)

    async def _renamed(self, path: Path, key: Key) -> None:
        """Follow a file under the name that it has now beside its old one."""
        now = await asyncio.to_thread(_name_of, path.parent, key)
        known = self._marks.get(key)
        if now is not None and (known is None or await asyncio.to_thread(continues, now, known)):
            self._under_other_names[now] = key
        elif mark := self._marks.pop(key, None):
            await self._memory.drop_watch_mark(self._namespace, mark)
            self._followers.pop(key, None)
            packed = await asyncio.to_thread(found_packed, path, mark)
            if packed is not None and packed.unread_bytes:
                self._lost.append(_lost(path, packed))

    def _told_of_lost(self) -> list[Watched]:
        told, self._lost = self._lost, []
        return told

    def _all(self) -> dict[Path, None]:
        """Return the files that aren't known to be read to their ends as they stand, the one written first before others.

        So a log is read before the one that has its name now.
        """
        paths = dict.fromkeys([*self._under_other_names, *self._where.files()])
        states = {path: state for path in paths if (state := _state_of(path)) is not None}
        unread = [path for path, state in states.items() if self._read_as.get(path) != state]
        gone = [path for path in self._read_as if path not in states]
        return dict.fromkeys([*gone, *sorted(unread, key=lambda path: (states[path].changed_ns, path))])

    def _of_ours(self, paths: Sequence[Path]) -> dict[Path, None]:
        return {path: None for path in paths if self._where.has(path) or path in self._under_other_names}

    async def _look(self, path: Path) -> AsyncIterator[Watched]:
        """Take a step in the file of a name; the one that had its name before is read to its end first."""
        state = await asyncio.to_thread(_state_of, path)
        before = self._under_other_names.get(path) or self._at.get(path)
        if before is not None and (state is None or before != state.key):
            self._at.pop(path, None)
            self._under_other_names.pop(path, None)
            await self._renamed(path, before)
            for event in self._told_of_lost():
                yield event
            for other in [other for other, key in self._under_other_names.items() if key == before]:
                async for event in self._to_its_end(other, before):
                    yield event
        if state is None:
            self._read_as.pop(path, None)
            return
        if path not in self._under_other_names:
            self._at[path] = state.key
        step = await self._step(path, state.key, self._quiet_s)
        if step is None and path not in self._told and not self._followers[state.key].is_holding:
            self._read_as[path] = state
        elif isinstance(step, Step):
            async for event in self._keep(path, step):
                yield event
        elif step is not None:
            yield step

    async def _to_its_end(self, path: Path, key: Key) -> AsyncIterator[Watched]:
        while isinstance(step := await self._step(path, key, quiet_s=0.0), Step):
            async for event in self._keep(path, step):
                yield event

    async def _step(self, path: Path, key: Key, quiet_s: float) -> Step | Watched | None:
        """Take a step in a file. None: nothing new, and its follower is there."""
        follower = self._followers.pop(key, None)
        if follower is None:
            mark = self._marks.get(key) or WatchMark(storable(str(path)), *key)
            follower = Follower(mark)
        self._followers[key] = follower
        look = partial(follower.look, path, now_s=self._clock.now_s(), quiet_s=quiet_s)
        try:
            step = await asyncio.to_thread(look)
        except Replaced:
            return None  # the look after next finds it by its inode
        except OSError as error:
            if path in self._told:
                return None
            self._told.add(path)
            return Watched("problem", storable(str(path)), reason=f"it can't be read: {error.strerror or error}")
        while len(self._followers) > _MOST_FOLLOWERS:
            # What it held back is read again from the mark.
            self._followers.popitem(last=False)
        self._told.discard(path)
        return step

    async def _keep(self, path: Path, step: Step) -> AsyncIterator[Watched]:
        """Remember what a step gave, then its mark; what fails leaves the mark where it was."""
        try:
            if step.intent is not None:
                await self._memory.put_watch_mark(self._namespace, step.intent)
            new = known = 0
            for source, said in step.said:
                done = await self._memory.add(self._namespace, said, source=source)
                new += len(done.new_ids)
                known += len(done.turn_ids) - len(done.new_ids)
            if self._marks.get(step.mark.key) != step.mark:
                await self._memory.put_watch_mark(self._namespace, step.mark)
        except AkashicError:
            self._followers.pop(step.mark.key, None)
            raise
        self._marks[step.mark.key] = step.mark
        for problem in step.problems:
            yield Watched("problem", storable(str(path)), line=problem.line, reason=problem.reason)
        yield Watched("read", storable(str(path)), new, known, step.read_bytes, step.behind_bytes)


def _lost(path: Path, packed: Packed) -> Watched:
    reason = (
        f"it was compressed to {packed.path.name} before its last {packed.unread_bytes} bytes were read: "
        "they aren't remembered; unpack it there to have them read"
    )
    return Watched("problem", storable(str(path)), reason=reason)


class _Changes:
    """What the system tells of, handed over to the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._paths: dict[Path, None] = {}
        self._event = asyncio.Event()
        self.problem = ""

    def tell(self, *names: Any) -> None:
        """Note names that changed; from any thread."""
        self._loop.call_soon_threadsafe(self._note, [Path(os.fsdecode(name)) for name in names if name])

    def _note(self, paths: Sequence[Path]) -> None:
        self._paths |= dict.fromkeys(paths)
        self._event.set()

    def take(self) -> list[Path]:
        """Return what changed since the last time."""
        paths = list(self._paths)
        self._paths.clear()
        self._event.clear()
        return paths

    async def wait(self, limit_s: float) -> bool:
        """Wait for a change; False when the time passed without one."""
        try:
            await asyncio.wait_for(self._event.wait(), limit_s)
        except TimeoutError:
            return False
        return True


@asynccontextmanager
async def _changes(where: Where) -> AsyncIterator[_Changes]:
    """Watch folders in a thread of watchdog's. When the system refuses, looks at everything remain, and it is said."""
    from watchdog.events import FileSystemEvent, FileSystemEventHandler
    from watchdog.observers import Observer

    changes = _Changes(asyncio.get_running_loop())

    class Handler(FileSystemEventHandler):
        def on_any_event(self, event: FileSystemEvent) -> None:
            # Being opened and read, also by us, is no change.
            if event.event_type in ("created", "modified", "moved", "deleted", "closed") and not event.is_directory:
                changes.tell(event.src_path, event.dest_path)

    observer = Observer()
    try:
        for root in where.roots:
            folder = root if root.is_dir() else root.parent
            observer.schedule(Handler(), str(folder), recursive=root.is_dir())
        await asyncio.to_thread(observer.start)
    except OSError as error:
        changes.problem = f"the system doesn't tell of changes ({error.strerror or error}); looking every {_LOOK_S:g} s"
        logger.warning("watching %s: %s", ", ".join(map(str, where.roots)), changes.problem)
        # Folders before the refused one are being watched, and nobody would take what is told of them.
        await asyncio.to_thread(observer.unschedule_all)
    try:
        yield changes
    finally:
        if observer.is_alive():
            observer.stop()
            await asyncio.to_thread(observer.join)


def _root(path: str) -> Path:
    root = Path(os.path.expanduser(path))  # Path's own raises for a user who doesn't exist
    if not root.is_absolute():
        raise BadRequest(f"watching {path!r}: a path that isn't absolute", hint="give the whole path")
    try:
        is_there = root.exists()
    except OSError as error:
        shown = str(root)[:_SHOWN_CHARS]
        raise BadRequest(f"watching {shown}: {error.strerror or error}", hint="check the path") from error
    if not is_there:
        raise BadRequest(f"watching {root}: there is no such folder or file", hint="check the path")
    return root.resolve()


def _state_of(path: Path) -> _State | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return _State((stat.st_dev, stat.st_ino), stat.st_size, stat.st_mtime_ns)


def _key_of(path: Path) -> Key | None:
    state = _state_of(path)
    return None if state is None else state.key


def _name_of(folder: Path, key: Key) -> Path | None:
    """Find a file in a folder by what it is."""
    try:
        with os.scandir(folder) as entries:
            return next((Path(e.path) for e in entries if e.inode() == key[1] and _key_of(Path(e.path)) == key), None)
    except OSError:
        return None
