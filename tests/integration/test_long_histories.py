"""Histories of ten thousand messages: refused with counts where they can't fit, counted exactly where that is asked."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx

from akashic_daemon.api.app import create_app
from akashic_daemon.engine.fake import FakeEngine
from fake_service import running_service

MESSAGES = [{"role": ("user", "assistant")[i % 2], "content": f"m{i}"} for i in range(10_001)]
MARKS = "<|im_start|>{}\n<|im_end|>\n"


def test_ten_thousand_messages_are_refused_with_counts_in_every_api_before_they_are_laid_out(home: Path) -> None:
    engine = FakeEngine(window_tokens=1024)

    async def run() -> list[httpx.Response]:
        async with running_service(home, lambda _n, _p: engine) as service:
            transport = httpx.ASGITransport(create_app(service, token=None), client=("127.0.0.1", 5))
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as client:
                bodies: dict[str, dict[str, Any]] = {
                    "/v1/chat/completions": {"messages": MESSAGES},
                    "/v1/messages": {"messages": MESSAGES, "max_tokens": 5},
                    "/v1/responses": {"input": MESSAGES},
                    "/v1/messages/count_tokens": {"messages": MESSAGES},
                }
                return [await client.post(path, json={"model": "fake", **body}) for path, body in bodies.items()]

    *refused, counted = asyncio.run(run())
    for found in refused:
        error = found.json()["error"]
        assert (found.status_code, error["code"], error["n_ctx"]) == (400, "prompt_too_long", 1024)
        assert error["n_prompt_tokens"] > 1024
    assert refused[1].json()["error"]["message"].startswith("prompt is too long: ")
    text = "".join(MARKS.format(m["role"]) + m["content"] for m in MESSAGES) + "<|im_start|>assistant\n"
    marks = text.count("<|im_start|>") + text.count("<|im_end|>")
    bare = text.replace("<|im_start|>", "").replace("<|im_end|>", "")
    assert counted.json() == {"input_tokens": len(bare) + marks}
    assert engine.computed == []
