"""What a request asks of the daemon and what it hears back, whatever API it came through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from akashic_daemon.engine.base import SamplingParams
from akashic_daemon.protocol.memory import MemoryAsk
from akashic_daemon.protocol.native import Recalled, Reuse, Timing
from akashic_daemon.trajectory.message import Message, ToolCall
from akashic_daemon.types import Priority

NAMED_TOOL = "tool:"
FinishReason = Literal["stop", "length", "tool_calls", "cancelled"]


@dataclass(frozen=True, slots=True)
class GenerationInput:
    """One request for text. Exactly one of `messages` (rendered by the chat template) and `text` (as it is) is set.

    max_tokens: None means to the end of the window. session: None lets the daemon find or make one.
    expect_s: the session's next request is expected so many seconds after this one ends.
    continue_final: the last message is an unfinished assistant message to go on with. tool_choice: "auto", "none",
    "required", or the name of a tool that must be called, as `NAMED_TOOL + name`. json_schema: the answer is JSON for it;
    strict_schema: refuse one that a grammar can't hold it to. think: whether a model that can think does; None is as it likes.
    memory: whether, or how, memory is used; None leaves it to the settings. recalled: what of it stands in the messages.
    sent: where in `messages` those stand that the client sent, when memory put others there; numbers in operations count these.
    notes: what was done to it on the way here, for people.
    """

    messages: tuple[Message, ...] | None = None
    text: str | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    model: str | None = None
    session: str | None = None
    policy: str | None = None
    edit_reuse: Literal["exact", "drop"] | None = None
    cache_ops: tuple[Mapping[str, Any], ...] = ()
    drop_message: Mapping[str, Any] | None = None
    reposition: tuple[int, ...] | None = None
    drop_rule: Mapping[str, Any] | None = None
    expect_s: float | None = None
    continue_final: bool = False
    tool_choice: str = "auto"
    parallel_tool_calls: bool = True
    json_schema: Mapping[str, Any] | None = None
    strict_schema: bool = False
    think: bool | None = None
    priority: Priority = "normal"
    memory: bool | MemoryAsk | None = None
    recalled: Recalled | None = None
    sent: tuple[int, ...] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Started:
    """The prompt is laid out and admitted; always the first event, sent when computing begins."""

    request: str
    session: str | None
    model: str
    prompt_tokens: int
    reuse: Reuse


@dataclass(frozen=True, slots=True)
class Progress:
    """So many tokens of the prompt are in the cache now."""

    prefilled_tokens: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More text: whole UTF-8 characters, never part of a stop string. Covers `tokens` sampled tokens."""

    text: str
    tokens: int


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    """More of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """More of a tool call. The first of each `index` has `id` and `name`; `arguments` is the next piece of JSON text."""

    index: int
    arguments: str
    id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The end; always the last event unless an error is raised. `stop_string` is set when one ended it.

    tool_calls: in order; their text is no part of `text`. thinking: what the model thought first; None for nothing.
    thinking_tokens: how many of the completion's tokens were spent on that.
    """

    finish_reason: FinishReason
    text: str
    prompt_tokens: int
    completion_tokens: int
    reuse: Reuse
    timing: Timing
    stop_string: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    thinking: str | None = None
    thinking_tokens: int = 0


GenerationEvent = Started | Progress | TextDelta | ThinkingDelta | ToolCallDelta | Finished
