"""The daemon serves a Hugging Face folder by the torch engine, as it serves anything else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("gguf")

from akashic_daemon.config import load
from akashic_daemon.engine.base import SamplingParams
from akashic_daemon.engine.torch_engine import TorchEngine
from akashic_daemon.paths import find_paths
from akashic_daemon.protocol import native
from akashic_daemon.schedule.loop import StepLoop
from akashic_daemon.service import Service
from fake_service import answer, ask, assistant, user
from tiny_gguf import Shape
from torch_folder import config_of, tiny_tensors, write_folder


def with_service(home: Path, check: Callable[[Service], Awaitable[None]]) -> None:
    """Run a service whose one model is a tiny folder, through its own engine factory."""
    shape = Shape()
    folder = write_folder(home / "tiny-folder", tiny_tensors(home, shape), config_of(shape))
    flags = {"model.default": "tiny-folder", "model.gpu_layers": 0, "schedule.threads": 1, "cache.kv_tokens": 2048}
    settings = load(home / "config.toml", env={}, flags=flags)

    async def run() -> None:
        service = Service(settings, find_paths({"AKASHIC_HOME": str(home)}))
        await service.start()
        try:
            added = await service.add_model(native.AddModelRequest(path=str(folder)))
            assert (added.name, added.window_tokens, added.problem) == ("tiny-folder", 1024, None)
            await check(service)
        finally:
            await service.stop()

    asyncio.run(run())


def test_a_folder_answers_reuses_and_drops(home: Path) -> None:
    async def check(service: Service) -> None:
        asked: dict[str, Any] = {"session": "s", "sampling": SamplingParams(temperature=0.0), "max_tokens": 8}
        first = await answer(service, ask(user("hello there, how is it?"), **asked))
        assert first.completion_tokens
        again = (user("hello there, how is it?"), assistant(first.text), user("and now?"))
        second = await answer(service, ask(*again, **asked))
        assert second.reuse.reused_tokens >= first.prompt_tokens
        assert second.reuse.computed_tokens < second.prompt_tokens
        detail = await service.models.get("tiny-folder")
        assert detail.capabilities["repos"]
        assert detail.metadata["engine"] == "torch"

    with_service(home, check)


def test_the_same_text_again_after_others_says_the_same(home: Path) -> None:
    """Greedy, and every answer is computed on what was shared or kept from before."""

    async def check(service: Service) -> None:
        asked: dict[str, Any] = {"sampling": SamplingParams(temperature=0.0), "max_tokens": 12}
        texts = ["one two three", "one two four", "one", "five " * 20]
        first = [
            (await answer(service, ask(user(text), session=f"a{n}", **asked))).text for n, text in enumerate(texts)
        ]
        both = await asyncio.gather(
            *(answer(service, ask(user(text), session=f"b{n}", **asked)) for n, text in enumerate(texts))
        )
        assert [found.text for found in both] == first
        engine = service._loop.engine
        assert isinstance(engine, TorchEngine)
        engine.kv.check()

    with_service(home, check)


def test_a_prompt_with_drops_is_computed_in_one_step(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And says what it says when each piece is computed by itself."""
    told = [user("start"), *(m for n in range(7) for m in (assistant(f"answer {n}"), user(f"more of {n} please")))]
    ops = tuple({"op": "drop", "messages": [n - 6], "at": n} for n in (8, 10, 12))
    said: list[str] = []
    prefills: list[int] = []

    async def check(service: Service) -> None:
        asked: dict[str, Any] = {"sampling": SamplingParams(temperature=0.0), "max_tokens": 6, "session": "s"}
        await answer(service, ask(*told[:7], **asked))
        engine = service._loop.engine
        assert isinstance(engine, TorchEngine)
        compute = engine._compute

        def counting(step: Any) -> Any:
            prefills.extend([len(step.tokens)] if len(step.tokens) > 1 else [])
            return compute(step)

        prefills.clear()
        monkeypatch.setattr(engine, "_compute", counting)
        found = await answer(service, ask(*told, cache_ops=ops, **asked))
        assert sum(prefills) == found.reuse.computed_tokens
        said.append(found.text)

    for folder, most in (("together", 1), ("apart", 9)):
        (home / folder).mkdir()
        with_service(home / folder, check)
        assert len(prefills) <= most
        monkeypatch.setattr(StepLoop, "_defer", lambda *_: False)
    assert len(prefills) > 3
    assert said[0] == said[1]


def test_a_chat_template_that_comes_to_the_folder_is_the_next_requests(home: Path) -> None:
    async def check(service: Service) -> None:
        asked: dict[str, Any] = {"sampling": SamplingParams(temperature=0.0), "max_tokens": 4}
        first = await answer(service, ask(user("hello there"), session="a", **asked))
        template = "{% for message in messages %}{{ message.content }}{% endfor %}"
        (home / "tiny-folder" / "chat_template.jinja").write_text(template)
        second = await answer(service, ask(user("hello there"), session="b", **asked))
        assert second.prompt_tokens < first.prompt_tokens

    with_service(home, check)
