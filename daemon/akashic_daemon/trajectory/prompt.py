"""From messages to the tokens of a prompt, with an owner for each, and what leaves when the window is too small.

Each message's text is tokenized by itself, so a message's tokens never depend on its neighbours: the same message is the
same tokens in every conversation. An assistant message that was sampled here keeps the very tokens that were sampled,
if they spell its text with this model: they may have been sampled by another one.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from akashic_daemon.toolcalls.form import Thinking
from akashic_daemon.toolcalls.syntax import Syntax
from akashic_daemon.toolcalls.thought_marks import THINK, ThoughtMarks
from akashic_daemon.trajectory.message import Message, Role, chain_all
from akashic_daemon.trajectory.template import ChatTemplate, Segment, broken_off
from akashic_daemon.types import ChainDigest

RecallSampled = Callable[[ChainDigest | None, str], Sequence[int] | None]
"""(chain before the message, its text) -> the ids it was sampled as, if it was sampled here."""

Says = Callable[[Sequence[int], Message, str], bool]
"""(sampled ids, answer, its text in the prompt) -> whether the ids are, with this model, just that answer as it is shown."""

_CACHED_TEXTS = 8192
_PROBE = "\u2063answer\u2063"
_CHARS_PER_TOKEN_AT_MOST = 16
_CHARS_OF_A_SUSPECT = 8
"""A history with more characters than so many for each token of the window is counted roughly before it is laid out."""
_PIECE_CHARS = 4096


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids, the message that owns each (the count of messages for scaffolding at the end), and notes for people.

    left_out_messages and left_out_tokens: what of the history isn't in the prompt; first_message: the first index of
    the newest turns that are.
    """

    tokens: array[int]
    message_at: array[int]
    notes: tuple[str, ...] = ()
    first_message: int = 0
    left_out_messages: int = 0
    left_out_tokens: int = 0


class PromptBuilder:
    """Builds prompts for one loaded model."""

    def __init__(
        self,
        template: ChatTemplate,
        tokenize: Callable[[str], list[int]],
        *,
        bos: Sequence[int],
        spell: Callable[[Sequence[int]], bytes | None],
        says: Says | None = None,
    ) -> None:
        """Make a builder; `spell` returns what ids print, None when the model hasn't all of them; `says` reads calls."""
        self._template = template
        self._tokenize = tokenize
        self._spell = spell
        self._says = says
        self._closing: str | None = None
        self._bos = array("i", bos)
        self._tokens_of: OrderedDict[str, array[int]] = OrderedDict()
        self._believed: OrderedDict[str, array[int]] = OrderedDict()

    def build(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        recall: RecallSampled | None = None,
        add_generation_prompt: bool = True,
        think: bool | None = None,
        continue_final: bool = False,
    ) -> Prompt:
        """Return the whole conversation as a prompt; continue_final: it ends where the last message breaks off.

        Raises Unsupported for a last message that the template doesn't show as it is.
        """
        opened = add_generation_prompt and not continue_final
        rendered = self._template.segments(messages, tools=tools, add_generation_prompt=opened, think=think)
        segments = broken_off(rendered.segments, messages[-1]) if continue_final else rendered.segments
        chains = chain_all(messages)
        opening = self._template.opening(think) if continue_final else self._opening(segments, len(messages))
        tokens, owners = array("i"), array("i")
        for segment in segments:
            ids = self._segment_tokens(segment, messages, chains, recall, opening)
            tokens.extend(ids)
            owners.extend([segment.first_message] * len(ids))
        if self._bos and tokens[: len(self._bos)] != self._bos:
            tokens, owners = self._bos + tokens, array("i", [0] * len(self._bos)) + owners
        return Prompt(tokens, owners, rendered.notes)

    def fit(
        self,
        messages: Sequence[Message],
        *,
        limit_tokens: int,
        first_message: int,
        tools: Sequence[Mapping[str, Any]] = (),
        recall: RecallSampled | None = None,
    ) -> Prompt:
        """Return the system message and the newest turns that fit `limit_tokens`, beginning at `first_message` if that fits.

        When the start has to move, it moves on by a quarter of the limit more than needed, so that the next turns
        find their prefix unchanged. The result may exceed the limit when the newest turn alone does.
        """
        head = 1 if messages and messages[0].role is Role.SYSTEM else 0
        first = max(first_message, head, self._rough_start(messages, head, limit_tokens))
        prompt = self.build([*messages[:head], *messages[first:]], tools=tools, recall=recall)
        if len(prompt.tokens) > limit_tokens:
            first = self._start_for(prompt, messages, head, first, limit_tokens * 3 // 4)
            prompt = self.build([*messages[:head], *messages[first:]], tools=tools, recall=recall)
        left = messages[head:first]
        left_tokens = sum(len(self._text_tokens(m.content)) for m in left[-2000:])
        owners = array("i", [o if o < head else o + first - head for o in prompt.message_at])
        return Prompt(prompt.tokens, owners, prompt.notes, first, len(left), left_tokens)

    def far_over(
        self, messages: Sequence[Message], *, limit_tokens: int, tools: Sequence[Mapping[str, Any]] = ()
    ) -> int | None:
        """Return how many tokens a conversation surely has that is far over a limit; None for one that may fit."""
        chars = sum(map(_chars_of, messages)) + (len(json.dumps(list(tools), default=str)) if tools else 0)
        if chars // _CHARS_OF_A_SUSPECT + 2 * len(messages) < 2 * limit_tokens:
            return None
        return tokens_at_least(self._tokenize, self.text(messages, tools=tools), limit_tokens)

    def replaced(
        self, messages: Sequence[Message], index: int, text: str, *, tools: Sequence[Mapping[str, Any]] = ()
    ) -> array[int]:
        """Return the tokens of message `index` if its content were `text`, role marks included."""
        changed = [*messages[:index], replace(messages[index], content=text, thinking=None), *messages[index + 1 :]]
        prompt = self.build(changed, tools=tools, add_generation_prompt=False)
        first, end = bisect_left(prompt.message_at, index), bisect_right(prompt.message_at, index)
        return prompt.tokens[first:end]

    @property
    def syntax(self) -> Syntax:
        """In what wrapper the model writes tool calls."""
        return self._template.syntax

    def thinking(self, think: bool | None = None) -> Thinking:
        """Tell whether an answer may begin with thoughts, or does."""
        return self._template.thinking(think)

    @property
    def thought_marks(self) -> ThoughtMarks:
        """Between what marks the model thinks, if it does."""
        return self._template.thought_marks or THINK

    @property
    def bos_tokens(self) -> int:
        """How many tokens stand before the template's text."""
        return len(self._bos)

    def text(self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """Return a conversation's text without a generation prompt."""
        return self._template.render(messages, tools=tools, add_generation_prompt=False)

    def count(self, text: str) -> int:
        """Return how many tokens a text has by itself."""
        return len(self._text_tokens(text))

    def forget_texts(self) -> None:
        """Drop every text that is kept to save work. A build that is running goes on with fresh memories."""
        self._tokens_of, self._believed = OrderedDict(), OrderedDict()
        self._template.forget_texts()

    def _rough_start(self, messages: Sequence[Message], head: int, limit_tokens: int) -> int:
        """Skip, by characters alone, what can't possibly fit, so that a huge history isn't rendered."""
        room, index = limit_tokens * _CHARS_PER_TOKEN_AT_MOST, len(messages)
        while index > head and room > 0:
            index -= 1
            room -= len(messages[index].content)
        return index

    def _start_for(self, prompt: Prompt, messages: Sequence[Message], head: int, first: int, limit: int) -> int:
        counts = [0] * (len(messages) - first + head + 1)
        for owner in prompt.message_at:
            counts[owner] += 1
        total, start = sum(counts), first
        last_user = max((i for i, m in enumerate(messages) if m.role is Role.USER), default=len(messages) - 1)
        while start < last_user and (total > limit or messages[start].role is Role.TOOL):
            total -= counts[start - first + head]
            start += 1
        return start

    def _opening(self, segments: Sequence[Segment], message_count: int) -> str:
        last = segments[-1] if segments else None
        return last.text if last is not None and last.first_message >= message_count else ""

    def _segment_tokens(
        self,
        segment: Segment,
        messages: Sequence[Message],
        chains: Sequence[ChainDigest],
        recall: RecallSampled | None,
        opening: str,
    ) -> array[int]:
        owned = segment.messages
        if recall is not None and opening and len(owned) == 1 and messages[owned.start].role is Role.ASSISTANT:
            message = messages[owned.start]
            content = message.content
            parent = chains[owned.start - 1] if owned.start else None
            if not segment.text.startswith(opening):  # one that says already that there is no thought
                opening = opening.partition(self.thought_marks.opening)[0]
            if message.tool_calls or message.thinking is not None:
                exact = self._exact(segment, message, recall(parent, message.said), opening)
                return self._text_tokens(segment.text) if exact is None else exact
            if content and segment.text.startswith(opening + content):
                sampled = recall(parent, content)
                if sampled is not None and self._believes(content, ids := array("i", sampled)):
                    rest = segment.text[len(opening) + len(content) :]
                    return self._text_tokens(opening) + ids + self._text_tokens(rest)
        return self._text_tokens(segment.text)

    def _exact(
        self, segment: Segment, message: Message, sampled: Sequence[int] | None, opening: str
    ) -> array[int] | None:
        """Return the tokens of a message with calls or thoughts, the sampled ids in place of what the template makes of them.

        None when the ids aren't known, don't say just this with this model, or the template ends the turn otherwise.
        """
        closing = self._turn_end(opening)
        if sampled is None or self._says is None or not closing:
            return None
        if not segment.text.startswith(opening) or not segment.text.endswith(closing):
            return None
        ids = array("i", sampled)
        shown = segment.text[len(opening) : len(segment.text) - len(closing)]
        if self._believed.get(f"{message.said}\x1f{shown}") != ids:
            if not self._says(ids, message, shown):
                return None
            self._believe(f"{message.said}\x1f{shown}", ids)
        return self._text_tokens(opening) + ids + self._text_tokens(closing)

    def _turn_end(self, opening: str) -> str:
        """Return what the template writes behind an answer; empty when that can't be told."""
        if self._closing is None:
            turns = [Message(Role.USER, "u"), Message(Role.ASSISTANT, _PROBE), Message(Role.USER, "u")]
            segments = self._template.segments(turns, add_generation_prompt=False).segments
            segment = segments[1] if len(segments) > 1 else segments[0]
            before, found, after = segment.text.partition(_PROBE)
            is_whole = found and opening.startswith(before) and segment.messages == range(1, 2)
            self._closing = after if is_whole else ""
        return self._closing

    def _believe(self, text: str, ids: array[int]) -> None:
        self._believed[text] = ids
        while len(self._believed) > _CACHED_TEXTS:
            self._believed.popitem(last=False)

    def _believes(self, text: str, ids: array[int]) -> bool:
        """Tell whether ids that were remembered spell the text with this model's vocabulary."""
        if self._believed.get(text) == ids:
            return True
        if self._spell(ids) != text.encode("utf-8", "surrogatepass"):
            return False
        self._believe(text, ids)
        return True

    def _text_tokens(self, text: str) -> array[int]:
        known = self._tokens_of.get(text)
        if known is None:
            known = self._tokens_of[text] = array("i", self._tokenize(text))
            while len(self._tokens_of) > _CACHED_TEXTS:
                self._tokens_of.popitem(last=False)
        return known


def _chars_of(message: Message) -> int:
    return len(message.content) + len(message.thinking or "") + sum(len(call.arguments) for call in message.tool_calls)


def tokens_at_least(tokenize: Callable[[str], Sequence[int]], text: str, limit_tokens: int) -> int | None:
    """Return how many tokens a text surely has that is far over a limit, without cutting all of it; None if it may fit.

    Cutting a text in pieces makes its tokens more, but by less than twice.
    """
    if len(text) // _CHARS_OF_A_SUSPECT < 2 * limit_tokens:
        return None
    count = 0
    for start in range(0, len(text), _PIECE_CHARS):
        count += len(tokenize(text[start : start + _PIECE_CHARS]))
        if count > 4 * limit_tokens:
            break
    return count // 2 if count > 2 * limit_tokens else None
