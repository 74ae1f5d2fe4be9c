"""The contract between the scheduler and whatever computes.

An engine holds KV *cells*: (token, position) pairs. A cell may be held by any number of *sequences*; it is freed when
the last one lets go. A token sees the cells of its own sequence with a position not after its own. Everything here is
called from one thread only (the engine thread); nothing here blocks on anything but computing.

What makes this correct: `share` and `release` change who holds a cell, never its content, so they can't disturb another
sequence (invariants 2 and 4). `decode` either computes every token of the batch or raises and leaves every sequence
as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from akashic_daemon.toolcalls.trigger import Trigger
from akashic_daemon.types import SequenceId

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]

AS_COMPUTED, Q8 = "as_computed", "q8"
STORAGES = (AS_COMPUTED, Q8)
"""How exported KV is stored: bit for bit, or each 32 values as int8 with one scale."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do with the loaded model. `why_not` maps a missing capability's name to its reason.

    hole_s: seconds that one idle cell below the highest used one costs each step; 0 where holes cost nothing.
    grammar: whether its samplers hold an answer to a grammar.
    """

    max_sequences: int
    kv_cells: int
    drop: bool
    repos: bool
    tail_gap: bool
    range_export: bool
    segment_batch: bool = False
    sparse_attention: bool = False
    kv_types: tuple[str, ...] = ("f16",)
    hole_s: float = 0.0
    grammar: bool = False
    why_not: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The loaded model. `window_tokens` is the longest context it serves; sizes in bytes.

    parts: what its fingerprint is made of, by name, so that two can be told apart in words.
    """

    name: str
    path: str
    description: str
    architecture: str
    parameters_count: int
    size_bytes: int
    kv_bytes_per_token: int
    kv_bytes: int
    vocabulary_size: int
    trained_window_tokens: int
    window_tokens: int
    chat_template: str | None
    bos: str
    eos: str
    add_bos: bool
    fingerprint: str
    metadata: dict[str, str] = field(default_factory=dict)
    parts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen. Neutral values switch a step off; temperature 0 is greedy.

    grammar: GBNF whose start rule is `root`. triggers: it holds from where one of these is said on, that text included;
    without any, from the start.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    seed: int | None = None
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_last_tokens: int = 64
    logit_bias: tuple[tuple[int, float], ...] = ()
    grammar: str | None = None
    triggers: tuple[Trigger, ...] = ()


@dataclass(frozen=True, slots=True)
class BatchItem:
    """Consecutive tokens of one sequence: `tokens[i]` stands at position `start + i`.

    `start` is past the sequence's last position; a gap needs `Capabilities.tail_gap`, except in an empty sequence.
    `logits` asks for the logits of the last token only, `all_logits` for those of every token.
    """

    sequence: SequenceId
    tokens: Sequence[int]
    start: int
    logits: bool
    all_logits: bool = False


class SavedCells(Protocol):
    """KV that was copied out of an engine; means something to that engine only."""

    @property
    def nbytes(self) -> int:
        """Bytes of host memory that it takes."""


@dataclass(frozen=True, slots=True)
class PackedRun:
    """An export, and the positions start <= p < end that its cells are to have."""

    data: memoryview
    start: int
    end: int


class Sampler(Protocol):
    """A chain of sampling steps with its own random state, for one request."""

    def sample(self, item: int) -> int:
        """Choose a token from the logits of batch item number `item` of the last `decode`, and remember it."""

    def accept(self, tokens: Sequence[int]) -> None:
        """Let penalties know of `tokens` that were not sampled here."""

    def close(self) -> None:
        """Free what it holds. Calling it twice does nothing."""


@runtime_checkable
class Interruptible(Protocol):
    """An engine whose steps may take long, and can be ended in the middle."""

    def interrupt(self) -> None:
        """Let the running `decode`, or else the next one, raise EngineError early, with no cell added. Any thread."""


@runtime_checkable
class SegmentBatch(Protocol):
    """An engine that computes pieces of a prompt together, though operations lie between them (PAPERS section 3).

    To be had where operations move no KV: `Capabilities.segment_batch`.
    """

    def defer(self, item: BatchItem) -> None:
        """Add the cells of an item that asks for no logits now, and compute them with the next `decode`.

        Sequences may be operated on meanwhile, as if it were computed; each token sees what it would have seen. Raises
        EngineError when no cell is free; then none was added.
        """

    def settle(self) -> None:
        """Compute what was deferred.

        Raises EngineError when it can't; those cells then hold nothing, as after a `decode` that failed with any deferred:
        the caller must let go of all cells.
        """


class Engine(Protocol):
    """A loaded model with its KV cells."""

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""

    @property
    def model(self) -> ModelInfo:
        """What is loaded."""

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """Return the token ids of `text`; `special` recognises control tokens. Never adds BOS or EOS. Any thread."""

    def token_bytes(self, token: int) -> bytes:
        """Return what a token prints; control tokens print nothing. Any thread."""

    def is_end(self, token: int) -> bool:
        """Tell if a token ends a turn. Any thread."""

    def decode(self, batch: Sequence[BatchItem]) -> None:
        """Compute the batch and add its cells. At most `Capabilities.kv_cells` fit in all sequences together.

        Raises EngineError (no cell free, or the computation failed); then no cell was added.
        """

    def sampler(self, params: SamplingParams) -> Sampler:
        """Return a new sampler. Raises BadRequest when params can't be used (a broken grammar)."""

    def share(self, source: SequenceId, target: SequenceId, start: int, end: int) -> None:
        """Let `target` hold the cells of `source` at positions start <= p < end too. No bytes move."""

    def release(self, sequence: SequenceId, start: int = 0, end: int = -1) -> None:
        """Let `sequence` let go of its cells at positions start <= p < end (-1: to the end)."""

    def save(self, sequence: SequenceId, ranges: Sequence[tuple[int, int]]) -> SavedCells:
        """Copy out the cells of `sequence` at these ascending position ranges. It must hold all of them."""

    def load(self, saved: SavedCells, sequence: SequenceId, ranges: Sequence[tuple[int, int]]) -> None:
        """Add new cells to `sequence`: the saved KV, in order, at these positions; K is rotated where they differ.

        Raises EngineError when cells lack, Unsupported when positions differ and `Capabilities.repos` is false; then
        no cell was added.
        """

    def export_bytes(self, tokens: int, storage: str) -> int:
        """Return the most bytes that `export_cells` writes for a run of `tokens`. Any thread.

        Raises Unsupported when cells can't be exported so.
        """

    def export_cells(self, sequence: SequenceId, start: int, end: int, into: memoryview, storage: str) -> int:
        """Write the KV of `sequence` at positions start <= p < end, all of which it holds, into `into`.

        Return the bytes used. They say themselves what they are (`engine.packed`), but not for which model: the caller
        keeps the fingerprint and the tokens. `storage` is one of STORAGES. Raises EngineError when `into` is too small
        or a position isn't held, Unsupported when cells can't be exported so.
        """

    def import_cells(self, data: memoryview, sequence: SequenceId, start: int, end: int) -> None:
        """Add new cells to `sequence` at positions start <= p < end: those in `data`, exactly what an export used.

        K is rotated where the exported run stood elsewhere. `data` is only read, and not kept. Raises EngineError when
        `data` isn't such an export, cells lack or `sequence` holds one of the positions, Unsupported when positions
        differ and `Capabilities.repos` is false; then no cell was added.
        """

    def import_runs(self, runs: Sequence[PackedRun], sequence: SequenceId) -> None:
        """Do what `import_cells` does for several runs, adjacent or not: all of them or none. Faster, runs being short."""

    def position_range(self, sequence: SequenceId) -> tuple[int, int] | None:
        """Return the lowest and highest position that `sequence` holds, None when it holds nothing."""

    def close(self) -> None:
        """Free the model. Nothing may be called afterwards."""


class ReadableEngine(Engine, Protocol):
    """An engine that also hands out what the model says, token by token; for measuring, never for serving."""

    def logits(self, item: int) -> FloatArray:
        """Return a copy of the logits of batch item number `item` of the last `decode`: [tokens, vocabulary].

        The item must have asked for `all_logits`.
        """
