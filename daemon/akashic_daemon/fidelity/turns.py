"""A recorded run as turns: for each answer of the assistant, the prompt that led to it and the tokens of what was said."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from akashic_daemon.engine.base import Engine
from akashic_daemon.errors import Unsupported
from akashic_daemon.program.layout import Layout, preamble
from akashic_daemon.trajectory.message import Message, Role
from akashic_daemon.trajectory.prompt import PromptBuilder
from akashic_daemon.trajectory.template import ChatTemplate
from akashic_daemon.transcript import MAIN, Imported, read_transcript


@dataclass(frozen=True, slots=True)
class Run:
    """One conversation of a transcript, and how many parts of the file couldn't be used."""

    name: str
    messages: tuple[Message, ...]
    problems: int

    @property
    def answers(self) -> list[int]:
        """The messages that answer something."""
        return [i for i, m in enumerate(self.messages) if i and m.role is Role.ASSISTANT]


@dataclass(frozen=True, slots=True)
class Turn:
    """The history up to an answer and the answer itself, which is the layout's last message.

    The answer's own words are the `said` tokens before the last `after` ones: role marks and the end mark aren't scored.
    """

    index: int
    layout: Layout
    said: int
    after: int


def read_runs(path: Path) -> list[Run]:
    """Return every conversation of a transcript in any known format. Raises TranscriptError."""
    found: dict[str, list[Message]] = {}
    problems = 0
    for item in read_transcript(path):
        if isinstance(item, Imported):
            found.setdefault(item.conversation, []).append(item.message)
        else:
            problems += 1
    alone = set(found) == {MAIN} or len(found) == 1
    return [Run(path.stem if alone else f"{path.stem}#{key}", tuple(m), problems) for key, m in found.items()]


@dataclass(slots=True)
class TurnCutter:
    """Cuts runs into turns for one model. `unscored` counts the answers that couldn't be told from their role marks."""

    engine: Engine
    unscored: int = 0
    _template: ChatTemplate = field(init=False)
    _builder: PromptBuilder = field(init=False)

    def __post_init__(self) -> None:
        info = self.engine.model
        if not info.chat_template:
            raise Unsupported(f"measuring with {info.name}: it has no chat template", hint="name a chat model")
        self._template = ChatTemplate(info.chat_template, bos=info.bos, eos=info.eos)
        bos = self._tokenize(info.bos) if info.add_bos and info.bos else []
        self._builder = PromptBuilder(self._template, self._tokenize, bos=bos, spell=self._spell)

    def turns(self, run: Run) -> Iterator[Turn]:
        """Yield the turns of a run in order."""
        for answer in run.answers:
            turn = self.turn(run.messages[: answer + 1])
            if turn is None:
                self.unscored += 1
            else:
                yield turn

    def turn(self, messages: Sequence[Message]) -> Turn | None:
        """Return the turn of messages that end with an answer; None when it is empty or can't be told from its role marks."""
        answer = len(messages) - 1
        # Answers are tokenized apart from the role mark before them, as they were when they were generated.
        prompt = self._builder.build(messages, recall=lambda _, text: self._tokenize(text), add_generation_prompt=False)
        opened = self._builder.build(messages[:answer])
        layout = Layout.of(messages, prompt, head_tokens=self._head_tokens(messages[0]))
        opening = opened.tokens[len([o for o in opened.message_at if o < answer]) :]
        last = layout.messages[answer]
        text = layout.tokens[layout.offset(answer) : layout.end]
        if last.approximate or not opening or text[: len(opening)] != opening:
            return None
        said = self._until_end(text[len(opening) :])
        return Turn(answer, layout, said, len(text) - len(opening) - said) if said else None

    def _until_end(self, text: array[int]) -> int:
        return next((i for i, token in enumerate(text) if self.engine.is_end(token)), len(text))

    def _head_tokens(self, first: Message) -> int:
        text = preamble(lambda messages: self._template.render(messages, add_generation_prompt=False), first)
        return len(self._tokenize(text))

    def _tokenize(self, text: str) -> list[int]:
        return self.engine.tokenize(text, special=True)

    def _spell(self, tokens: Sequence[int]) -> bytes | None:
        return b"".join(map(self.engine.token_bytes, tokens))
