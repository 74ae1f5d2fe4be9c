"""One answer's sampled bytes to events: what is thought first, text and, where the request has tools, the calls in it."""

from __future__ import annotations

import codecs
import secrets
from collections.abc import Mapping, Sequence

from akashic_daemon.schedule.events import TextDelta, ThinkingDelta, ToolCallDelta
from akashic_daemon.schedule.text import TextAssembler
from akashic_daemon.toolcalls.channels import ChannelReader
from akashic_daemon.toolcalls.form import AnswerForm, Thinking
from akashic_daemon.toolcalls.reader import CallReader, Said
from akashic_daemon.toolcalls.thought_marks import THINK, ThoughtMarks
from akashic_daemon.toolcalls.thoughts import ThoughtReader, reader_of
from akashic_daemon.trajectory.message import ToolCall

Delta = TextDelta | ThinkingDelta | ToolCallDelta
_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"


class Answer:
    """What one answer says. Stop strings end it where it is text, not within a call.

    marks: tokens that print nothing but stand for something in the wrapper of calls, or around thoughts.
    """

    def __init__(
        self,
        stop: Sequence[str],
        form: AnswerForm | None = None,
        *,
        marks: Mapping[int, bytes] | None = None,
        holds_grammar: bool = False,
        thinking: Thinking = "none",
        thoughts: ThoughtMarks = THINK,
    ) -> None:
        self._marks = marks or {}
        self._thoughts = reader_of(thinking, thoughts) if thinking != "none" else None
        self.thinking_tokens = 0
        self._plain: TextAssembler | None = None
        self._reader: CallReader | None = None
        if form is None or form.syntax is None:
            self._plain = TextAssembler(stop)
        else:
            self._reader = form.reader(stop, holds_grammar=holds_grammar)
            self._id_chars = form.syntax.id_chars
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._ids: list[str] = []

    @property
    def text(self) -> str:
        """All text given out so far."""
        reader = self._reader if self._reader is not None else self._plain
        assert reader is not None
        return reader.text

    @property
    def thinking(self) -> str | None:
        """What was thought before."""
        return None if self._thoughts is None else self._thoughts.thought

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the answer."""
        reader = self._reader if self._reader is not None else self._plain
        assert reader is not None
        return reader.stop_string

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be sampled: a stop string was met, or the only call that was allowed is complete."""
        return self.stop_string is not None or (self._reader is not None and self._reader.is_over)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls so far; the last one may be cut off at the end of the answer."""
        if self._reader is None:
            return ()
        return tuple(ToolCall(i, c.name, c.arguments) for i, c in zip(self._ids, self._reader.calls, strict=False))

    def push(self, token: int, piece: bytes, tokens: int) -> list[Delta]:
        """Add a token and what it prints, the answer's `tokens`-th; return what is certain now."""
        if self._thoughts is not None and not self._thoughts.is_over:
            text = self._decoder.decode(self._marks.get(token, piece))
            return self._thinking(self._thoughts, self._thoughts.push(text), tokens)
        if self._plain is not None:
            return _text(self._plain.push(piece), tokens)
        assert self._reader is not None
        piece = self._marks.get(token, piece)
        return self._events(self._reader.push(self._decoder.decode(piece)), tokens)

    def finish(self, tokens: int) -> list[Delta]:
        """Return what was held back; the answer has ended."""
        out: list[Delta] = []
        if self._thoughts is not None and not self._thoughts.is_over:
            thought, said = self._thoughts.push(self._decoder.decode(b"", True))
            out = self._thinking(self._thoughts, (thought, said), tokens)
            out += self._thinking(self._thoughts, self._thoughts.finish(), tokens)
        if self._plain is not None:
            return out + _text(self._plain.finish(), tokens)
        assert self._reader is not None
        told = [*self._reader.push(self._decoder.decode(b"", True)), *self._reader.finish()]
        return out + self._events(told, tokens)

    def _thinking(self, thoughts: ThoughtReader | ChannelReader, parts: tuple[str, str], tokens: int) -> list[Delta]:
        """Return events of a piece of which the first part is thought and the second said."""
        thought, said = parts
        if thought or thoughts.is_thinking:
            self.thinking_tokens = tokens
        out: list[Delta] = [ThinkingDelta(thought)] if thought else []
        if not said:
            return out
        if self._plain is not None:
            return out + _text(self._plain.push(said.encode()), tokens)
        assert self._reader is not None
        return out + self._events(self._reader.push(said), tokens)

    def _events(self, said: Sequence[Said], tokens: int) -> list[Delta]:
        out: list[Delta] = []
        for part in said:
            if isinstance(part, str):
                out.append(TextDelta(part, tokens))
            elif part.name is not None:
                self._ids.append(self._new_id())
                out.append(ToolCallDelta(part.index, part.arguments, self._ids[-1], part.name))
            else:
                out.append(ToolCallDelta(part.index, part.arguments))
        return out

    def _new_id(self) -> str:
        if self._id_chars:
            return "".join(secrets.choice(_LETTERS) for _ in range(self._id_chars))
        return f"call_{secrets.token_hex(12)}"


def _text(text: str, tokens: int) -> list[Delta]:
    return [TextDelta(text, tokens)] if text else []
