"""What sampled ids of a model spell, its control tokens too, and whether they are an answer that is known by its text."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from akashic_daemon.engine.base import Engine
from akashic_daemon.toolcalls.calls import is_object
from akashic_daemon.toolcalls.form import Thinking
from akashic_daemon.toolcalls.reader import CallReader
from akashic_daemon.toolcalls.syntax import Shape, Syntax
from akashic_daemon.toolcalls.thought_marks import THINK, ThoughtMarks
from akashic_daemon.toolcalls.thoughts import parted
from akashic_daemon.trajectory.message import Message
from akashic_daemon.trajectory.prompt import Says

_NAMED_CONTROL = re.compile(r"<[|｜][^|｜<>]*[|｜]>|\[[A-Z_]+\]")
"""How vocabularies spell control tokens; a mark may be made of several."""


def control_marks(engine: Engine, syntax: Syntax) -> dict[int, bytes]:
    """Return the control tokens that a wrapper is made of, and what they stand for."""
    return marks_of(engine, syntax.marks)


def marks_of(engine: Engine, marks: Sequence[str]) -> dict[int, bytes]:
    """Return the control tokens that spell marks, or parts of them, and what they stand for."""
    out: dict[int, bytes] = {}
    for mark in marks:
        for part in dict.fromkeys((mark, *_NAMED_CONTROL.findall(mark))):
            ids = engine.tokenize(part, special=True)
            if len(ids) == 1 and not engine.token_bytes(ids[0]):
                out[ids[0]] = part.encode()
    return out


def says(engine: Engine, syntax: Syntax, thinking: Thinking, thoughts: ThoughtMarks = THINK) -> Says:
    """Return what tells whether sampled ids are an answer with this text, its calls and thoughts, for a model's builder."""
    marks = control_marks(engine, syntax) | marks_of(engine, thoughts.texts)
    size = engine.model.vocabulary_size

    def told(ids: Sequence[int], message: Message, shown: str) -> bool:
        if not all(0 <= token < size for token in ids):
            return False
        spelled = b"".join(marks.get(token) or engine.token_bytes(token) for token in ids).decode("utf-8", "replace")
        thought, said = parted(spelled, thinking, thoughts)
        # Templates leave older thoughts out; the ids of an answer with them would bring them back.
        if thought != message.thinking or thought != parted(shown, thinking, thoughts)[0]:
            return False
        calls = [(call.name, call.arguments) for call in message.tool_calls]
        if not calls:
            return said == message.content
        reader = CallReader(syntax)
        reader.push(said)
        reader.finish()
        read = [(call.name, call.arguments) for call in reader.calls]
        if syntax.shape is Shape.TAGS:  # the JSON was made of the tags, with the tools at hand
            return reader.text == message.content and list(map(_values, read)) == list(map(_values, calls))
        return reader.text == message.content and read == calls

    return told


def _values(call: tuple[str, str]) -> tuple[str, dict[str, str]]:
    """Return a call with its arguments as text, whatever they are."""
    name, arguments = call
    values = json.loads(arguments) if is_object(arguments) else {"": arguments}
    return name, {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
