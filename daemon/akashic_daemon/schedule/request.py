"""A request on its way through the step loop."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from akashic_daemon.engine.base import Sampler, SamplingParams
from akashic_daemon.errors import AkashicError
from akashic_daemon.program.route import Route
from akashic_daemon.protocol.native import Miss, Reuse, Timing
from akashic_daemon.schedule.answer import Answer
from akashic_daemon.schedule.events import Finished, FinishReason, GenerationEvent
from akashic_daemon.schedule.tiering import Outlook
from akashic_daemon.tiers.exporter import Trail
from akashic_daemon.tiers.promotion import Promotion
from akashic_daemon.toolcalls.form import AnswerForm, Thinking
from akashic_daemon.toolcalls.thought_marks import THINK, ThoughtMarks
from akashic_daemon.types import Priority, RequestId, SequenceId


class State(StrEnum):
    """Where a request stands."""

    QUEUED = "queued"
    RELOAD = "reload"
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
    priority: Priority = "normal"
    form: AnswerForm | None = None
    """What the answer may look like; None for free text."""
    marks: Mapping[int, bytes] = field(default_factory=dict)
    """Tokens that print nothing but stand for something in the wrapper of calls, or around thoughts."""
    holds_grammar: bool = False
    """Whether the engine keeps the answer to its grammar."""
    thinking: Thinking = "none"
    thoughts: ThoughtMarks = THINK
    """Whether the answer may begin with a think block, or does."""
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
    answer: Answer = field(init=False)
    outlook: Outlook | None = None
    """What its way would cost, as last looked at."""
    promotion: Promotion | None = None
    """What the tiers are giving back for it."""
    from_tier: dict[str, int] = field(default_factory=dict)
    """Tokens that came from each tier below the engine."""
    trail: Trail | None = None
    """How far what it computed is cut into blocks."""
    timing: Timing = field(default_factory=Timing)
    admitted_s: float = 0.0
    last_token_s: float = 0.0
    started: bool = False
    cancelled: bool = False
    planned_anew: int = 0
    """How often what it was to read was let go of by others."""
    had_setback: bool = False
    """Whether it computes again because the cache had to be emptied under it."""
    had_everything: bool = False
    """Whether it ran alone on an emptied cache already, because it lacked room."""
    finish_reason: FinishReason | None = None

    def __post_init__(self) -> None:
        self.answer = Answer(
            self.stop,
            self.form,
            marks=self.marks,
            holds_grammar=self.holds_grammar,
            thinking=self.thinking,
            thoughts=self.thoughts,
        )
        self.route = self.routes[0]

    def take(self, route: Route, computing: int) -> None:
        """Go this way; `computing` is how many tokens of it aren't cached."""
        self.route, self.ahead = route, computing
        self.reuse.plan = route.kind
        self.reuse.dropped_tokens = route.dropped_tokens
        self.reuse.notes = [*self.reuse.notes, *route.notes]
        self.budget_tokens = min(self.budget_tokens, self.window_tokens - route.next_position)

    def describe_reuse(self) -> None:
        """Say what is reused and computed, as far as it is known now."""
        computed = self.computed + self.ahead
        reuse = self.reuse
        reuse.computed_tokens = computed
        reuse.reused_tokens = max(0, self.prompt_tokens - computed)
        below = {tier: min(count, reuse.reused_tokens) for tier, count in self.from_tier.items() if count}
        reuse.reused_by_tier = {"gpu": max(0, reuse.reused_tokens - sum(below.values())), **below}

    def key_so_far(self) -> array[int]:
        """Return its key with the answer tokens that are computed."""
        return self.key[: self.prompt_key_length] + array("i", self.generated[: self.stored])

    def end(self, reason: FinishReason, now_s: float) -> Finished:
        """Return the last event of an answer."""
        self.finish_reason = reason
        self.timing.total_s = now_s - self.created_s
        self.timing.decode_s = max(0.0, self.timing.total_s - self.timing.first_token_s) if self.generated else 0.0
        calls = self.answer.tool_calls
        return Finished(
            finish_reason="tool_calls" if calls and reason == "stop" else reason,
            text=self.answer.text,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=len(self.generated),
            reuse=self.reuse,
            timing=self.timing,
            stop_string=self.answer.stop_string,
            tool_calls=calls,
            thinking=self.answer.thinking,
            thinking_tokens=self.answer.thinking_tokens,
        )
