"""The OpenAI-shaped requests that we understand, as pydantic models. Unknown fields are let through and reported."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from akashic_daemon.protocol.memory import MemoryAsk
from akashic_daemon.protocol.tiers import LONGEST_HINT_S
from akashic_daemon.types import SESSION_NAME_PATTERN, Priority

MOST_STOPS = 256
"""Each one is looked for after each token."""


class Hint(BaseModel):
    """The session's next request is expected so many seconds after this one has ended."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    expect_s: float = Field(ge=0, le=LONGEST_HINT_S)


class AkashicExtension(BaseModel):
    """Our own part of a request."""

    model_config = ConfigDict(extra="forbid", regex_engine="python-re")  # the pattern looks ahead

    session: str | None = Field(None, pattern=SESSION_NAME_PATTERN)
    policy: str | None = None
    cache_ops: list[dict[str, Any]] = Field(default_factory=list)
    edit_reuse: Literal["exact", "drop"] | None = None
    hint: Hint | None = None
    priority: Priority = "normal"
    memory: bool | MemoryAsk | None = None


class StreamOptions(BaseModel):
    """What a stream carries besides text."""

    model_config = ConfigDict(extra="ignore")

    include_usage: bool = False


class SamplingFields(BaseModel):
    """What every request for text may say of its answer."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    model: str | None = None
    temperature: float = Field(1.0, ge=0, le=10)
    top_p: float = Field(1.0, ge=0, le=1)
    top_k: int = Field(0, ge=0, lt=2**31)
    min_p: float = Field(0.0, ge=0, le=1)
    seed: int | None = None
    stop: str | list[str] | None = None
    max_tokens: int | None = Field(None, ge=1)
    n: Literal[1] = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    repeat_penalty: float = Field(
        1.0, gt=0, le=10, validation_alias=AliasChoices("repeat_penalty", "repetition_penalty")
    )
    logit_bias: dict[int, Annotated[float, Field(ge=-1e9, le=1e9)]] | None = None
    user: str | None = None
    drop_message: dict[str, Any] | None = None
    reposition: list[int] | None = None
    drop_rule: dict[str, Any] | None = None
    akashic: AkashicExtension = AkashicExtension()


class ChatCompletionRequest(SamplingFields):
    """Body of /v1/chat/completions; messages are checked where they are turned into ours."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    response_format: dict[str, Any] | None = None
    continue_final_message: bool = False
    add_generation_prompt: bool | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
