"""One answer's sampled bytes to events: text and, where the request has tools, the calls in it."""

from __future__ import annotations

import codecs
import secrets
from collections.abc import Mapping, Sequence

from akashic_daemon.schedule.events import TextDelta, ToolCallDelta
from akashic_daemon.schedule.text import TextAssembler
from akashic_daemon.toolcalls.form import AnswerForm
from akashic_daemon.toolcalls.reader import CallReader, Said
from akashic_daemon.trajectory.message import ToolCall

_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"


class Answer:
    """What one answer says. Stop strings end it where it is text, not within a call.

    marks: tokens that print nothing but stand for something in the wrapper of calls.
    """

    def __init__(
        self,
        stop: Sequence[str],
        form: AnswerForm | None = None,
        *,
        marks: Mapping[int, bytes] | None = None,
        holds_grammar: bool = False,
    ) -> None:
        self._marks = marks or {}
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

    def push(self, token: int, piece: bytes, tokens: int) -> list[TextDelta | ToolCallDelta]:
        """Add a token and what it prints, the answer's `tokens`-th; return what is certain now."""
        if self._plain is not None:
            text = self._plain.push(piece)
            return [TextDelta(text, tokens)] if text else []
        assert self._reader is not None
        piece = self._marks.get(token, piece)
        return self._events(self._reader.push(self._decoder.decode(piece)), tokens)

    def finish(self, tokens: int) -> list[TextDelta | ToolCallDelta]:
        """Return what was held back; the answer has ended."""
        if self._plain is not None:
            text = self._plain.finish()
            return [TextDelta(text, tokens)] if text else []
        assert self._reader is not None
        said = [*self._reader.push(self._decoder.decode(b"", True)), *self._reader.finish()]
        return self._events(said, tokens)

    def _events(self, said: Sequence[Said], tokens: int) -> list[TextDelta | ToolCallDelta]:
        out: list[TextDelta | ToolCallDelta] = []
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
