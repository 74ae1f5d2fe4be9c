"""The requests of OpenAI's Responses API that we understand, as pydantic models. Unknown fields are let through and reported."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from akashic_daemon.protocol.openai import AkashicExtension


class TextConfig(BaseModel):
    """The form of an answer's text."""

    model_config = ConfigDict(extra="allow")

    format: dict[str, Any] | None = None


class CountInputRequest(BaseModel):
    """Body of /v1/responses/input_tokens; items and tools are checked where they are turned into ours."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    model: str | None = None
    input: str | list[Any] = Field(default_factory=list)
    instructions: str | None = None
    previous_response_id: str | None = Field(None, max_length=200)
    tools: list[Any] = Field(default_factory=list)
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    text: TextConfig | None = None
    reasoning: dict[str, Any] | None = None
    conversation: str | dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    akashic: AkashicExtension = AkashicExtension()


class ResponseRequest(CountInputRequest):
    """Body of /v1/responses."""

    max_output_tokens: int | None = Field(None, ge=1)
    temperature: float = Field(1.0, ge=0, le=10)
    top_p: float = Field(1.0, ge=0, le=1)
    stream: bool = False
    store: bool = True
    background: Literal[False] = False
    metadata: dict[str, Any] | None = None
    user: str | None = None
    include: list[str] | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
