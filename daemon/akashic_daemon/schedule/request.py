"""A request on its way through the step loop."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from akashic_daemon.engine.base import Sampler, SamplingParams
from akashic_daemon.errors import AkashicError
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
"""Given how many prompt tokens were reused, say why not more."""


@dataclass(slots=True)
class Request:
    """One generation. Owned by the engine thread once submitted.

    prompt: token ids; it grows by what was generated when the request is preempted and begins anew.
    budget_tokens: most tokens to generate.
    """

    id: RequestId
    session: str | None
    prompt: array[int]
    params: SamplingParams
    budget_tokens: int
    stop: tuple[str, ...]
    emit: Emit
    explain: ExplainMiss
    reuse: Reuse
    created_s: float
    model: str
    state: State = State.QUEUED
    sequence: SequenceId | None = None
    sampler: Sampler | None = None
    computed: int = 0
    """Tokens of prompt + generated that stand in the sequence."""
    prompt_tokens: int = 0
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
        self.prompt_tokens = len(self.prompt)
