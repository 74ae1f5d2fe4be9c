"""Reading a streamed answer of an OpenAI-compatible server, piece by piece."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from akashic_daemon.errors import UpstreamError
from akashic_daemon.schedule.events import FinishReason, GenerationEvent, TextDelta, ThinkingDelta, ToolCallDelta
from akashic_daemon.trajectory.message import ToolCall

_REASONS: Mapping[str, FinishReason] = {
    "stop": "stop", "length": "length", "tool_calls": "tool_calls", "function_call": "tool_calls",
}  # fmt: skip


class AnswerReader:
    """Gathers an answer. first_s: from the start to the first piece of text or of a call; 0 before it.

    cached_tokens: None when the server doesn't say.
    """

    def __init__(self, started_s: float) -> None:
        self._started_s = started_s
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: dict[int, list[str]] = {}
        self.first_s = 0.0
        self.pieces = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.cached_tokens: int | None = None
        self._thinking_tokens = 0
        self.finish_reason: FinishReason = "stop"
        self.notes: list[str] = []
        self.is_over = False
        """Whether the server has ended the answer."""

    @property
    def text(self) -> str:
        """What was said so far."""
        return "".join(self._texts)

    @property
    def thinking(self) -> str:
        """The reasoning so far."""
        return "".join(self._thoughts)

    @property
    def thinking_tokens(self) -> int:
        """Tokens of the reasoning: as the server counts them, else its pieces."""
        return self._thinking_tokens or len(self._thoughts)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls so far, in order."""
        return tuple(ToolCall(c[0], c[1], "".join(c[2:])) for _, c in sorted(self._calls.items()))

    def read(self, piece: Mapping[str, Any]) -> Iterator[GenerationEvent]:
        """Take one object of the stream and give what it adds. Raises UpstreamError on shapes that nobody sends."""
        try:
            if isinstance(piece.get("usage"), dict):
                self._usage(piece["usage"])
            for choice in piece.get("choices") or ():
                delta = choice.get("delta") or {}
                thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
                if thought:
                    self._count()
                    self._thoughts.append(thought)
                    yield ThinkingDelta(thought)
                text = delta.get("content") or choice.get("text") or ""
                if text:
                    self._count()
                    self._texts.append(text)
                    yield TextDelta(text, 1)
                for call in delta.get("tool_calls") or ():
                    self._count()
                    yield self._call(call)
                if choice.get("finish_reason"):
                    self._ended(str(choice["finish_reason"]))
        except (AttributeError, TypeError, KeyError, ValueError) as error:
            raise UpstreamError(
                f"a piece of the server's answer can't be read: {error!r}", hint="is it an OpenAI-compatible server?"
            ) from error

    def _count(self) -> None:
        self.pieces += 1
        self.first_s = self.first_s or time.monotonic() - self._started_s

    def _call(self, call: Mapping[str, Any]) -> ToolCallDelta:
        index, function = int(call.get("index") or 0), call.get("function") or {}
        arguments = function.get("arguments") or ""
        if index not in self._calls:
            name, call_id = str(function["name"]), str(call.get("id") or f"call_{index}")
            self._calls[index] = [call_id, name, arguments]
            return ToolCallDelta(index, arguments, call_id, name)
        self._calls[index].append(arguments)
        return ToolCallDelta(index, arguments)

    def _ended(self, reason: str) -> None:
        self.is_over = True
        self.finish_reason = _REASONS.get(reason, "stop")
        if reason not in _REASONS:
            self.notes.append(f"the server ended the answer: {reason}")

    def _usage(self, usage: Mapping[str, Any]) -> None:
        self.prompt_tokens = int(usage.get("prompt_tokens") or 0)
        self.completion_tokens = int(usage.get("completion_tokens") or 0)
        details = usage.get("completion_tokens_details") or {}
        self._thinking_tokens = int(details.get("reasoning_tokens") or 0)
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        self.cached_tokens = None if cached is None else int(cached)
