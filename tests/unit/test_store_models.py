"""Names for model files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from akashic_daemon.errors import Conflict, NotFound
from akashic_daemon.store.database import open_database
from akashic_daemon.store.models import ModelRegistry, ModelRow


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[ModelRegistry]:
    database = open_database(tmp_path / "a.db")
    yield ModelRegistry(database)
    database.close()


def defaults(registry: ModelRegistry) -> list[str]:
    return [r.name for r in registry.all() if r.is_default]


def test_a_registered_file_is_found_with_all_that_was_said_of_it(registry: ModelRegistry) -> None:
    registry.add("b", "/m/b.gguf", 2**40, 2**60, default=False)
    registry.add("a", "/m/a.gguf", 1, 2, default=False)
    assert registry.get("b") == ModelRow("b", "/m/b.gguf", 2**40, 2**60, False)
    assert [r.name for r in registry.all()] == ["a", "b"]


def test_one_name_never_stands_for_two_files(registry: ModelRegistry) -> None:
    registry.add("a", "/m/a.gguf", 1, 1, default=False)
    with pytest.raises(Conflict, match=r"/m/a\.gguf"):
        registry.add("a", "/m/other.gguf", 1, 1, default=True)
    assert registry.all() == [ModelRow("a", "/m/a.gguf", 1, 1, False)]


def test_a_file_that_changed_is_registered_again_and_stays_the_default(registry: ModelRegistry) -> None:
    registry.add("a", "/m/a.gguf", 1, 1, default=True)
    registry.add("a", "/m/a.gguf", 2, 3, default=False)
    assert registry.get("a") == ModelRow("a", "/m/a.gguf", 2, 3, True)


def test_there_is_one_default_at_most(registry: ModelRegistry) -> None:
    registry.add("a", "/m/a.gguf", 1, 1, default=True)
    registry.add("b", "/m/b.gguf", 1, 1, default=True)
    assert defaults(registry) == ["b"]
    registry.add("a", "/m/a.gguf", 1, 1, default=True)
    assert defaults(registry) == ["a"]


def test_a_removed_name_is_unknown_and_the_nearest_is_told(registry: ModelRegistry) -> None:
    registry.add("smollm", "/m/a.gguf", 1, 1, default=True)
    registry.add("smollm-2", "/m/b.gguf", 1, 1, default=False)
    assert registry.remove("smollm").path == "/m/a.gguf"
    for call in (registry.get, registry.remove):
        with pytest.raises(NotFound) as caught:
            call("smollm")
        assert "smollm-2" in (caught.value.hint or "")
