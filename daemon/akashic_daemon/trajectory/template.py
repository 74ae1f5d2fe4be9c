"""Chat templates: messages to text, and which text belongs to which message.

The template runs in a jinja2 sandbox. One that fails is an error, never a fallback. Ownership comes from rendering parts
of the conversation (`borders`); where a border can't be found, the neighbours share one segment, and `Segment.messages`
says so.
"""

from __future__ import annotations

import datetime
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from akashic_daemon.errors import TemplateError, Unsupported
from akashic_daemon.toolcalls.calls import is_object
from akashic_daemon.toolcalls.form import Thinking
from akashic_daemon.toolcalls.history import Habits, as_text, calls_as_text, find_habits, shown_id
from akashic_daemon.toolcalls.syntax import GENERIC, syntax_of
from akashic_daemon.toolcalls.thought_marks import ThoughtMarks, thought_marks_of
from akashic_daemon.trajectory.borders import Borders, text_before_a_user
from akashic_daemon.trajectory.message import Message, Role, chain_all
from akashic_daemon.types import ChainDigest

_CACHED_SEGMENTS = 8192


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of rendered text and the half-open range of messages that own it; an empty range is scaffolding."""

    text: str
    first_message: int
    end_message: int

    @property
    def messages(self) -> range:
        """Indices of the messages that own the text."""
        return range(self.first_message, self.end_message)


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt in segments; the last one may be the generation prompt (scaffolding). `notes` are for the user."""

    segments: tuple[Segment, ...]
    notes: tuple[str, ...]

    @property
    def text(self) -> str:
        """The whole prompt."""
        return "".join(s.text for s in self.segments)


def _raise(message: str) -> str:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


class ChatTemplate:
    """A model's chat template. Raises TemplateError at once when its source doesn't compile."""

    def __init__(self, source: str, *, bos: str, eos: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda f: datetime.datetime.now().strftime(f)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise TemplateError(f"the model's chat template doesn't compile: {error}") from error
        self._tokens = {"bos_token": bos, "eos_token": eos}
        self.syntax = syntax_of(source)
        """In what wrapper the model writes tool calls."""
        self.thought_marks = thought_marks_of(source)
        """Between what it shows thoughts; None when it knows none."""
        self._thinking: dict[bool | None, Thinking] = {}
        self._knows_tool_calls = "tool_calls" in source and self.syntax != GENERIC
        self._probed: Habits | None = None
        self._segment_texts: OrderedDict[tuple[ChainDigest, str], str] = OrderedDict()

    def thinking(self, think: bool | None = None) -> Thinking:
        """Tell whether an answer may begin with thoughts, or does: the prompt opens them. think: what was asked for."""
        if self.thought_marks is None:
            return "none"
        if think not in self._thinking:
            self._thinking[think] = self._probe_thinking(self.thought_marks, think)
        return self._thinking[think]

    def _probe_thinking(self, marks: ThoughtMarks, think: bool | None) -> Thinking:
        try:
            opening = self.render([Message(Role.USER, "u")], think=think).rstrip()
        except TemplateError:
            return "may"
        if opening.endswith(marks.opening):
            return "must"
        return "none" if opening.endswith(marks.said or marks.closing) else "may"

    def opening(self, think: bool | None = None) -> str:
        """Return the generation prompt: what stands before an answer; empty when that can't be told."""
        user = [Message(Role.USER, "u")]
        try:
            without = self.render(user, add_generation_prompt=False, think=think)
            opened = self.render(user, think=think)
        except TemplateError:
            return ""
        return opened.removeprefix(without) if opened.startswith(without) else ""

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        think: bool | None = None,
    ) -> str:
        """Return the prompt's text. Raises TemplateError with the template's own words."""
        seen = self._as_template_sees(messages, tools)
        return self._render(seen, list(tools) if self.syntax.native else [], add_generation_prompt, think)

    def _render(
        self, seen: list[dict[str, Any]], tools: list[Any], add_generation_prompt: bool, think: bool | None = None
    ) -> str:
        wishes = {} if think is None else {"enable_thinking": think, "thinking": think}
        try:
            return self._template.render(
                messages=seen,
                tools=tools or None,
                add_generation_prompt=add_generation_prompt,
                **self._tokens,
                **wishes,
            )
        except jinja2.TemplateError as error:
            raise TemplateError(f"the model's chat template refused these messages: {error}") from error
        except (TypeError, LookupError, ValueError, AttributeError, RecursionError, ArithmeticError) as error:
            raise TemplateError(f"the model's chat template failed on these messages: {error!r}") from error

    def segments(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        think: bool | None = None,
    ) -> Rendered:
        """Return the prompt cut at message borders."""
        text = self.render(messages, tools=tools, add_generation_prompt=add_generation_prompt, think=think)
        cut = self._cut(text, messages, tools, think, near=True)
        if cut is None:
            cut = self._cut(text, messages, tools, think, near=False)
        assert cut is not None, "exact borders don't contradict themselves"
        return Rendered(tuple(cut), tuple(self._notes(messages, tools)))

    def _cut(
        self,
        text: str,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        think: bool | None,
        *,
        near: bool,
    ) -> list[Segment] | None:
        """Return the text in segments; None when what neighbours said (`near`) was contradicted."""
        tools_key = json.dumps(list(tools), sort_keys=True, default=str) if tools else ""
        borders = self._borders(text, messages, tools, think, near=near)
        new: list[tuple[tuple[ChainDigest, str], str]] = []
        out: list[Segment] = []
        at = first = 0
        for index, digest in enumerate(chain_all(messages)):
            key = (digest, tools_key)
            cached = self._segment_texts.get(key) if first == index else None
            if cached is None or not text.startswith(cached, at):
                end = borders.end(index, first, at)
                if borders.contradicted:
                    return None
                if end is None:
                    continue
                cached = text[at:end]
                if first == index:
                    new.append((key, cached))
            out.append(Segment(cached, first, index + 1))
            at += len(cached)
            first = index + 1
        if first < len(messages):
            out.append(Segment(text[at:], first, len(messages)))
        elif at < len(text):
            out.append(Segment(text[at:], len(messages), len(messages)))
        for key, kept in new:
            self._keep(key, kept)
        return out

    def forget_texts(self) -> None:
        """Drop the rendered texts that are kept to save work."""
        self._segment_texts = OrderedDict()

    def _borders(
        self,
        text: str,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        think: bool | None,
        *,
        near: bool,
    ) -> Borders:
        shown_tools = list(tools) if self.syntax.native else []

        def whole(seen: list[dict[str, Any]]) -> str:
            return self._render(seen, shown_tools, False, think)

        def exact(index: int) -> int | None:
            seen = self._as_template_sees(messages[: index + 1], tools)
            try:
                prefix = whole(seen)
            except TemplateError:
                prefix = ""
            if prefix and text.startswith(prefix):
                return len(prefix)
            before = text_before_a_user(whole, seen)
            return len(before) if before is not None and text.startswith(before) else None

        habits = self._habits_for(messages, tools)
        seen = [self._message(m, habits) for m in messages]
        return Borders(text, seen, lambda shown: self._render(shown, [], False, think), exact, near=near)

    def _keep(self, key: tuple[ChainDigest, str], text: str) -> None:
        self._segment_texts[key] = text
        while len(self._segment_texts) > _CACHED_SEGMENTS:
            self._segment_texts.popitem(last=False)

    @property
    def _habits(self) -> Habits:
        """What it does with calls and roles, found out by rendering some."""
        if self._probed is None:
            self._probed = find_habits(lambda seen: self._render(seen, [], False), knows_calls=self._knows_tool_calls)
        return self._probed

    def _habits_for(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Habits:
        is_odd = any(m.tool_calls or m.role in (Role.TOOL, Role.SYSTEM) for m in messages)
        return self._habits if is_odd or (tools and not self.syntax.native) else Habits()

    def _as_template_sees(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        habits = self._habits_for(messages, tools)
        seen = [self._message(m, habits) for m in messages]
        if not habits.has_system_role:
            seen = _with_system_first(messages, seen)
        if not tools or self.syntax.native:
            return seen
        text = as_text(tools, self.syntax)
        if habits.has_system_role:
            if seen and seen[0]["role"] == Role.SYSTEM.value:
                return [{**seen[0], "content": f"{seen[0]['content']}\n\n{text}"}, *seen[1:]]
            return [{"role": Role.SYSTEM.value, "content": text}, *seen]
        first = next((i for i, m in enumerate(seen) if m["role"] == Role.USER.value), None)
        if first is None:
            return [{"role": Role.USER.value, "content": text}, *seen]
        shown = {**seen[first], "content": f"{text}\n\n{seen[first]['content']}"}
        return [*seen[:first], shown, *seen[first + 1 :]]

    def _message(self, message: Message, habits: Habits) -> dict[str, Any]:
        seen: dict[str, Any] = {"role": message.role.value, "content": message.content}
        if message.thinking is not None:
            seen["reasoning_content"] = message.thinking
            if self.thought_marks is not None and self.thought_marks.has_channels:
                seen["thinking"] = message.thinking  # as gpt-oss's template calls it
        if message.name is not None:
            seen["name"] = message.name
        if message.tool_call_id is not None:
            seen["tool_call_id"] = shown_id(message.tool_call_id, self.syntax)
        if message.role is Role.SYSTEM and not habits.has_system_role:
            seen["role"] = Role.USER.value
        if message.role is Role.TOOL and not habits.has_tool_role:
            seen = {"role": Role.USER.value, "content": f"<tool_response>\n{message.content}\n</tool_response>"}
        if message.tool_calls and self._knows_tool_calls and self._can_show(message, habits):
            seen["tool_calls"] = [
                {
                    "id": shown_id(c.id, self.syntax),
                    "type": "function",
                    "function": {"name": c.name, "arguments": habits.arguments(c.arguments)},
                }
                for c in message.tool_calls
            ]
        elif message.tool_calls:
            calls = calls_as_text(message.tool_calls, self.syntax)
            seen["content"] = "\n".join(([message.content] if message.content else []) + [calls])
        return seen

    def _can_show(self, message: Message, habits: Habits) -> bool:
        """Tell if the template shows these calls: broken arguments only as text."""
        return habits.takes_broken or all(is_object(c.arguments or "{}") for c in message.tool_calls)

    def _notes(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[str]:
        notes = []
        calls = any(m.tool_calls for m in messages)
        if not self._knows_tool_calls and calls:
            notes.append("the model's template has no tool calls; they stand as <tool_call> text")
        elif calls and any(not self._can_show(m, self._habits) for m in messages if m.tool_calls):
            notes.append("a tool call in the history has arguments that are no JSON object; it stands as text")
        if any(m.role is Role.TOOL for m in messages) and not self._habits.has_tool_role:
            notes.append("the model's template has no tool results; they stand in user messages")
        if any(m.role is Role.SYSTEM for m in messages) and not self._habits.has_system_role:
            notes.append("the model's template has no system role; system messages stand in user messages")
        if tools and not self.syntax.native:
            place = "the system message" if self._habits.has_system_role else "the first user message"
            notes.append(f"the model's template has no tools that are known here; {place} describes them")
        return notes


def _with_system_first(messages: Sequence[Message], seen: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Let the system messages at the beginning stand in the user's first message: many templates want turns to alternate."""
    leading = next((i for i, m in enumerate(messages) if m.role is not Role.SYSTEM), len(messages))
    if not leading or leading == len(messages) or seen[leading]["role"] != Role.USER.value:
        return seen
    text = "\n\n".join([*(m.content for m in messages[:leading]), seen[leading]["content"]])
    return [{**seen[leading], "content": text}, *seen[leading + 1 :]]


def broken_off(segments: Sequence[Segment], message: Message) -> tuple[Segment, ...]:
    """Return a conversation's segments up to where its last message breaks off, which is to be continued."""
    last = segments[-1]
    said = message.content if message.content in last.text else message.content.strip()
    before, found, _ = last.text.rpartition(said)
    if not found:
        raise Unsupported(
            "continuing the last message: the model's chat template doesn't show it as it is",
            hint="let the last message be the user's",
        )
    return (*segments[:-1], Segment(before + said, last.first_message, last.end_message))
