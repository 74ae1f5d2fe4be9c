"""Where the parts are joined: what the daemon can do, as one object that the HTTP routes call.

Everything here is async and runs on the event loop; computing happens on the engine thread, SQLite on the store thread.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from akashic_daemon.protocol import native
from akashic_daemon.schedule.events import GenerationEvent, GenerationInput
from akashic_daemon.trajectory.message import Message


class Service:
    """The daemon's abilities. Every method may raise AkashicError."""

    async def start(self) -> None:
        """Open the store and begin loading the default model; returns before the model is loaded."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Cancel what runs, flush state, free the model; ends within 8 seconds."""
        raise NotImplementedError

    async def health(self) -> tuple[bool, str]:
        """Tell if the step loop turns (an idle loop answers a ping within a second), with a sentence on why not."""
        raise NotImplementedError

    async def status(self) -> native.Status:
        """Say who runs, with what, and how full it is."""
        raise NotImplementedError

    async def stats(self) -> native.Stats:
        """Return a snapshot of the counters."""
        raise NotImplementedError

    def generate(self, request: GenerationInput) -> AsyncIterator[GenerationEvent]:
        """Run one request; closing the iterator cancels it within one step. Errors are raised from the iterator."""
        raise NotImplementedError

    async def count_tokens(self, request: GenerationInput) -> int:
        """Return the exact number of prompt tokens of a request."""
        raise NotImplementedError

    def turn(self, session: str, request: native.TurnRequest) -> AsyncIterator[native.TurnEvent]:
        """Run one user turn in a stored session; the session keeps the question and what was generated."""
        raise NotImplementedError

    def import_transcript(self, path: Path, *, format: str | None, name: str | None) -> AsyncIterator[native.ImportEvent]:  # noqa: A002
        """Read a spooled transcript into sessions, with progress; the caller removes the file."""
        raise NotImplementedError

    async def list_sessions(self) -> native.SessionList:
        """Return all sessions, newest first."""
        raise NotImplementedError

    async def get_session(self, session: str) -> native.SessionDetail:
        """Return a session with its messages."""
        raise NotImplementedError

    async def fork_session(self, session: str, request: native.ForkRequest) -> native.SessionSummary:
        """Branch a session off; prefixes are shared."""
        raise NotImplementedError

    async def export_session(self, session: str) -> list[Message]:
        """Return the messages of a session in order."""
        raise NotImplementedError

    async def remove_session(self, session: str) -> native.RemovedSession:
        """Delete a session and every message that no other session holds."""
        raise NotImplementedError

    async def list_models(self) -> native.ModelList:
        """Return the registered models."""
        raise NotImplementedError

    async def get_model(self, name: str) -> native.ModelDetail:
        """Return one model with its capabilities (loads its metadata if it isn't the loaded one)."""
        raise NotImplementedError

    async def add_model(self, request: native.AddModelRequest) -> native.ModelSummary:
        """Register a GGUF. Raises ModelError when the file is missing, truncated or no GGUF."""
        raise NotImplementedError

    async def remove_model(self, name: str) -> native.RemovedModel:
        """Forget a registration; the file stays."""
        raise NotImplementedError
