"""OpenAI's text completions as a pydantic model. Unknown fields are let through and reported."""

from __future__ import annotations

from typing import Any, Literal

from akashic_daemon.protocol.openai import SamplingFields


class CompletionRequest(SamplingFields):
    """Body of /v1/completions: prompts of text, each answered by itself."""

    prompt: str | list[Any]
    echo: bool = False
    suffix: str | None = None
    logprobs: int | bool | None = None
    best_of: Literal[1] = 1
