"""A request on its way through the step loop."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from akashic_daemon.engine.base import Sampler, SamplingParams
from akashic_daemon.errors import AkashicError
from akashic_daemon.program.route import Route
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

ExplainMiss = Callable[[Route, int, Sequence[int]], Miss | None]
"""Given the route taken, its first token that has to be computed, and what each route would have cost: say why."""


@dataclass(slots=True)
class Request:
    """One generation. Owned by the engine thread once submitted.

    routes: the ways to compute the prompt, best liked first; `route` is the one taken, once it is admitted.
    key: its path for the index, with what was generated and computed. prompt_tokens: of the prompt as it was sent.
    budget_tokens: most tokens to generate.
    """

    id: RequestId
    session: str | None
    routes: tuple[Route, ...]
    prompt_tokens: int
    window_tokens: int
    params: SamplingParams
    budget_tokens: int
    stop: tuple[str, ...]
    emit: Emit
    explain: ExplainMiss
    reuse: Reuse
    created_s: float
    model: str
    route: Route = field(init=False)
    state: State = State.QUEUED
    sequence: SequenceId | None = None
    sampler: Sampler | None = None
    key: array[int] = field(default_factory=lambda: array("i"))
    prompt_key_length: int = 0
    costs: list[int] = field(default_factory=list)
    computed: int = 0
    """Tokens that this request computed itself, before its first answer token."""
    ahead: int = 0
    """Tokens of the prompt that it still has to compute, as far as known."""
    stored: int = 0
    """Answer tokens that stand in the cache."""
    computed_ranges: list[tuple[int, int]] = field(default_factory=list)
    """Which tokens of the route's path were computed for it, by index."""
    generated: list[int] = field(default_factory=list)
    pending: int | None = None
    """The sampled token that the next step computes."""
    assembler: TextAssembler = field(init=False)
    timing: Timing = field(default_factory=Timing)
    admitted_s: float = 0.0
    last_token_s: float = 0.0
    started: bool = False
    cancelled: bool = False
    had_everything: bool = False
    """Whether it ran alone on an emptied cache already, because it lacked room."""
    finish_reason: FinishReason | None = None

    def __post_init__(self) -> None:
        self.assembler = TextAssembler(self.stop)
        self.route = self.routes[0]

    def take(self, route: Route, computing: int) -> None:
        """Go this way; `computing` is how many tokens of it aren't cached."""
        self.route, self.ahead = route, computing
        self.reuse.plan = route.kind
        self.reuse.dropped_tokens = route.dropped_tokens
        self.reuse.notes = [*self.reuse.notes, *route.notes]
        self.budget_tokens = min(self.budget_tokens, self.window_tokens - route.next_position)
