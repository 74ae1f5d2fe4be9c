"""A whole service on the fake engine, with registered models that are only a GGUF's first bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

from akashic_daemon.config import load
from akashic_daemon.engine.base import BatchItem, Engine, SamplingParams
from akashic_daemon.engine.fake import FakeEngine
from akashic_daemon.paths import ensure_private_dir, find_paths
from akashic_daemon.schedule.events import Finished, GenerationInput
from akashic_daemon.service import Service
from akashic_daemon.store.database import open_database
from akashic_daemon.store.models import ModelRegistry
from akashic_daemon.trajectory.message import Message, Role
from akashic_daemon.types import SequenceId

NEVER = 1 << 40
"""`end_every` of an engine that talks to the end of its budget (save for one answer in four thousand million)."""

MakeEngine = Callable[[str, Path], Engine]


def register(home: Path, names: Sequence[str]) -> None:
    """Write and register a dummy model file for each name."""
    paths = find_paths({"AKASHIC_HOME": str(home)})
    ensure_private_dir(paths.store_dir)
    database = open_database(paths.database)
    try:
        for name in names:
            file = home / f"{name}.gguf"
            file.write_bytes(b"GGUF\x03\x00\x00\x00")
            ModelRegistry(database).add(name, str(file), file.stat().st_size, file.stat().st_mtime_ns, False)
    finally:
        database.close()


@asynccontextmanager
async def running_service(
    home: Path, make: MakeEngine, *, models: Sequence[str] = ("fake",), flags: Mapping[str, Any] | None = None
) -> AsyncIterator[Service]:
    """Run a service whose default model is the first of `models`."""
    register(home, models)
    settings = load(home / "config.toml", env={}, flags={"model.default": models[0], **(flags or {})})
    service = Service(settings, find_paths({"AKASHIC_HOME": str(home)}), engine_factory=make)
    await service.start()
    try:
        yield service
    finally:
        await service.stop()


def user(text: str) -> Message:
    """Return a user message."""
    return Message(Role.USER, text)


def assistant(text: str) -> Message:
    """Return an assistant message."""
    return Message(Role.ASSISTANT, text)


def ask(*messages: Message, **options: Any) -> GenerationInput:
    """Return a chat request of at most 20 tokens unless told otherwise."""
    return GenerationInput(messages=messages, **{"max_tokens": 20, **options})


async def answer(service: Service, request: GenerationInput) -> Finished:
    """Run a request to its end."""
    async with aclosing(service.generate(request)) as events:
        async for event in events:
            if isinstance(event, Finished):
                return event
    raise AssertionError("the request ended without Finished")


def fresh_answer(messages: Sequence[Message], max_tokens: int, *, end_every: int = 29) -> str:
    """Compute what an engine says that has seen nothing but these messages."""
    engine = FakeEngine(kv_cells=1 << 20, end_every=end_every)
    text = "".join(f"<|im_start|>{m.role.value}\n{m.content}<|im_end|>\n" for m in messages)
    tokens = engine.tokenize(text + "<|im_start|>assistant\n", special=True)
    out, at, sampler = b"", 0, engine.sampler(SamplingParams())
    for _ in range(max_tokens):
        engine.decode([BatchItem(SequenceId(0), tokens, at, logits=True)])
        at += len(tokens)
        tokens = [sampler.sample(0)]
        if engine.is_end(tokens[0]):
            break
        out += engine.token_bytes(tokens[0])
    return out.decode()
