"""A request on its way through the step loop."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from akashic_daemon.engine.base import Sampler, SamplingParams
from akashic_daemon.errors import AkashicError
from akashic_daemon.program.path import Path
from akashic_daemon.protocol.native import Miss, Reuse, Timing
from akashic_daemon.schedule.events import FinishReason, GenerationEvent
from akashic_daemon.schedule.text import TextAssembler
from akashic_daemon.types import RequestId, SequenceId


class State(StrEnum):
    """Where a request stands."""

    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"
    DONE = "done"


Emit = Callable[[GenerationEvent | AkashicError], None]
"""Takes events on the engine thread; an error is the last thing it gets."""

ExplainMiss = Callable[[int], Miss | None]
"""Given the first prompt token that has to be computed, say why."""


@dataclass(slots=True)
class Request:
    """One generation. Owned by the engine thread once submitted.

    path: the prompt with its cache operations. key: the same for the index, with what was generated and computed.
    budget_tokens: most tokens to generate.
    """

    id: RequestId
    session: str | None
    path: Path
    params: SamplingParams
    budget_tokens: int
    stop: tuple[str, ...]
    emit: Emit
    explain: ExplainMiss
    reuse: Reuse
    created_s: float
    model: str
    visible_tokens: int
    """Tokens of the prompt that are visible at its end."""
    state: State = State.QUEUED
    sequence: SequenceId | None = None
    sampler: Sampler | None = None
    key: array[int] = field(default_factory=lambda: array("i"))
    prompt_key_length: int = 0
    computed: int = 0
    """Tokens that this request computed itself, before its first answer token."""
    ahead: int = 0
    """Tokens of the prompt that it still has to compute, as far as known."""
    stored: int = 0
    """Tokens of prompt + generated that stand in the cache."""
    generated: list[int] = field(default_factory=list)
    pending: int | None = None
    """The sampled token that the next step computes."""
    assembler: TextAssembler = field(init=False)
    timing: Timing = field(default_factory=Timing)
    admitted_s: float = 0.0
    last_token_s: float = 0.0
    started: bool = False
    cancelled: bool = False
    finish_reason: FinishReason | None = None

    def __post_init__(self) -> None:
        self.assembler = TextAssembler(self.stop)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, dropped ones included."""
        return len(self.path.tokens)
