"""KV in RAM over the SSD tier: sessions that the RAM pool has no room for come back from SSD; what is larger than it is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest import mock

import pytest

pytest.importorskip("torch")
pytest.importorskip("llama_cpp")
pytest.importorskip("gguf")

from akashic_daemon.config import Config
from akashic_daemon.engine.base import Engine, SamplingParams
from akashic_daemon.engine.host import torch_engine
from akashic_daemon.engine.torch_engine import TorchEngine
from akashic_daemon.engine.torch_engine.ram_pool import RamPool
from akashic_daemon.engine.torch_engine.split import SplitPool
from akashic_daemon.errors import PromptTooLong
from akashic_daemon.service import Service
from akashic_daemon.tiers.costs import Costs
from fake_service import answer, ask, running_service, user
from tiers_service import TIERS, empty_ram, settled
from tiny_gguf import Shape, write_tiny_gguf

pytestmark = pytest.mark.model

CELLS = 1024
GREEDY = SamplingParams(temperature=0.0)


def in_ram(file: Path, devices: str, kv_type: str, blocks: int) -> Engine:
    """Load with KV of `CELLS` cells in RAM."""
    config = Config.model_validate({
        "model": {
            "gpu_layers": 0, "kv_type": kv_type, "torch_devices": devices, "sparse_blocks": blocks,
            "window_tokens": CELLS,
        },
        "cache": {"kv_tokens": CELLS, "gpu_kv_tokens": 2 * CELLS + 4096},
        "schedule": {"threads": 1},
    })  # fmt: skip
    return torch_engine(config, "tiny", file)


@pytest.mark.parametrize(
    ("devices", "kv_type", "blocks"),
    [("cpu", "f32", 0), ("cpu", "f32", 12), ("cpu", "q8_0", 2), ("cpu,cpu", "f32", 0)],
    ids=["dense", "all pages chosen", "8 bits, sparse", "two devices"],
)
def test_a_session_that_ram_has_no_room_for_comes_back_from_ssd(
    tmp_path: Path, home: Path, devices: str, kv_type: str, blocks: int
) -> None:
    """With the same answers where rounding and the choice of pages don't depend on where KV comes to lie."""
    file = write_tiny_gguf(tmp_path / "tiny.gguf", shape=Shape(layers=4))
    texts = {name: f"{name} asks: " + f"what of {name} is there to be told? " * 18 for name in ("ann", "ben", "cid")}

    async def run() -> None:
        async with running_service(home, lambda *_: in_ram(file, devices, kv_type, blocks), flags=TIERS) as service:
            assert service._loading is not None
            await asyncio.wait({service._loading})
            exporter = service._loop.tiering._exporter
            assert exporter is not None
            exporter.min_recompute_s = 0.0  # everything is worth writing, however fast this machine is
            first = {name: await _asked(service, name, text) for name, text in texts.items()}
            engine = service._loop.engine
            assert isinstance(engine, TorchEngine)
            pool = engine.kv.pool
            parts = pool.parts if isinstance(pool, SplitPool) else (pool,)
            assert all(isinstance(part, RamPool) and (part.hot is not None) == (blocks > 0) for part in parts)
            assert sum(prompt for _, prompt, _ in first.values()) > CELLS, "RAM holds all: the test shows nothing"
            await settled(service)
            await empty_ram(service)
            for name, text in texts.items():
                said, prompt, computed = await _asked(service, name, text)
                assert said == first[name][0] or blocks == 2
                assert computed < prompt // 4, (name, computed, prompt)
            engine.kv.check()

    with mock.patch.object(Costs, "reload_pays", return_value=True):
        asyncio.run(run())


async def _asked(service: Service, session: str, text: str) -> tuple[str, int, int]:
    """Ask; return what was said, the prompt's tokens, and how many of them were computed."""
    found = await answer(service, ask(user(text), session=session, sampling=GREEDY, max_tokens=6))
    return found.text, found.prompt_tokens, found.reuse.computed_tokens


def test_a_context_that_ram_cant_hold_is_refused_with_its_counts(tmp_path: Path, home: Path) -> None:
    """No part of it is dropped, and what was there before still is."""
    file = write_tiny_gguf(tmp_path / "tiny.gguf", shape=Shape(layers=4, window=8192))

    async def run() -> None:
        async with running_service(home, lambda *_: in_ram(file, "cpu", "f32", 2), flags=TIERS) as service:
            short = await _asked(service, "s", "short")
            with pytest.raises(PromptTooLong, match=r"the prompt has .*[0-9]+ tokens and the window 1024"):
                await _asked(service, "long", "word " * 900)
            assert (await _asked(service, "s", "short"))[0] == short[0]

    asyncio.run(run())
