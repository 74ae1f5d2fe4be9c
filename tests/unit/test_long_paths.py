"""Paths that no file system takes are refused by name, as missing ones are."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from akashic_daemon.engine.model_files import describe_model
from akashic_daemon.errors import BadModelFile, BadRequest
from akashic_daemon.memory_service.service import MemoryService
from akashic_daemon.memory_service.watch import MemoryWatch
from akashic_daemon.paths import find_paths
from hashed_words import HashedWords

TOO_LONG = "/home/" + "[" * 5000 + "/some.gguf"


def test_a_model_at_a_path_that_is_too_long_is_no_model_file() -> None:
    with pytest.raises(BadModelFile, match="too long") as refused:
        describe_model(Path(TOO_LONG))
    assert len(str(refused.value)) < 1000


async def hashed() -> HashedWords:
    return HashedWords()


def test_logs_at_a_path_that_is_too_long_are_not_followed(home: Path) -> None:
    async def check() -> None:
        service = MemoryService(find_paths({"AKASHIC_HOME": str(home)}), hashed)
        try:
            async with aclosing(MemoryWatch(service).watch([TOO_LONG], namespace="n")) as events:
                with pytest.raises(BadRequest, match="too long") as refused:
                    await anext(events)
            assert len(str(refused.value)) < 1000
        finally:
            await service.close()

    asyncio.run(check())
