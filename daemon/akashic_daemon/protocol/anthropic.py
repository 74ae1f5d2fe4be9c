"""The Anthropic-shaped requests that we understand, as pydantic models. Unknown fields are let through and reported."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from akashic_daemon.protocol.openai import MOST_STOPS, AkashicExtension


class ToolChoice(BaseModel):
    """Whether a tool must be called, and which."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["auto", "any", "none", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class OutputFormat(BaseModel):
    """The shape of an answer."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    type: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(alias="schema")


class OutputConfig(BaseModel):
    """What an answer is to be like; `effort` and the like mean nothing here."""

    model_config = ConfigDict(extra="allow")

    format: OutputFormat | None = None


class CountTokensRequest(BaseModel):
    """Body of /v1/messages/count_tokens; messages and tools are checked where they are turned into ours."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    model: str | None = None
    messages: list[Any] = Field(min_length=1)
    system: str | list[Any] | None = None
    tools: list[Any] = Field(default_factory=list)
    tool_choice: ToolChoice | None = None
    thinking: dict[str, Any] | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    cache_control: dict[str, Any] | None = None
    akashic: AkashicExtension = AkashicExtension()


class MessagesRequest(CountTokensRequest):
    """Body of /v1/messages."""

    max_tokens: int = Field(ge=1)
    stop_sequences: list[str] = Field(default_factory=list, max_length=MOST_STOPS)
    stream: bool = False
    temperature: float = Field(1.0, ge=0, le=10)
    top_p: float = Field(1.0, ge=0, le=1)
    top_k: int = Field(0, ge=0, lt=2**31)
    metadata: dict[str, Any] | None = None
